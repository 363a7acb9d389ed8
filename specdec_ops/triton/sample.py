import torch
import triton
import triton.language as tl
from torch import Tensor

from specdec_ops.triton.distribution import (
    ARGMAX,
    INFINITY,
    MAXIMUM,
    ONE_HOT,
    SCALE,
    THRESHOLD,
    TOTAL,
    find_in_block,
    load_field,
    logprob_of,
    row_records,
    row_status,
)
from specdec_ops.triton.runtime import device_of, launch


@triton.jit
def _left(rows, row_stride, records, row, vocab, drawn, count, ids):
    """The row's logits at `ids`, -inf where there is no mass or the token was drawn. What is left of a row may be any
    number of magnitudes less likely than what was drawn: probabilities would not do."""
    x = tl.load(rows + tl.cast(row, tl.int64) * row_stride + ids, mask=ids < vocab, other=-INFINITY).to(tl.float32)
    x = tl.where(x >= load_field(records, row, THRESHOLD), x, -INFINITY)
    one_hot = tl.where(ids == load_field(records, row, ARGMAX).to(tl.int32), 0.0, -INFINITY)
    x = tl.where(load_field(records, row, ONE_HOT) > 0, one_hot, x)
    lanes = tl.arange(0, drawn.shape[0])
    for i in range(0, count):
        x = tl.where(ids == tl.sum(tl.where(lanes == i, drawn, 0), 0), -INFINITY, x)
    return x


@triton.jit
def _weights(x, largest, scale):
    return tl.where(x > -INFINITY, tl.exp(tl.maximum((x - largest) * scale, -1e30)), 0.0)


@triton.jit
def sample_kernel(
    rows,
    row_stride,
    records,
    vocab,
    uniforms,
    temperature,
    tokens,
    logprobs,
    status,
    num_rows,
    k,
    chunks,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """`k` draws a row without replacement; the best first where there is no uniform or the temperature is 0."""
    lanes = tl.arange(0, K)
    block_lanes = tl.arange(0, BLOCK)
    for row in range(tl.program_id(0), num_rows, tl.num_programs(0)):
        drawn = tl.full([K], -1, tl.int32)
        one_hot = load_field(records, row, ONE_HOT) > 0
        scale = load_field(records, row, SCALE)
        for i in range(0, k):
            # The largest logit left, its first id, and the sum of all weights relative to it: at first, the record's.
            streamed = tl.where(i > 0, chunks, 0)
            largest = tl.where(i > 0, -INFINITY, tl.where(one_hot, 0.0, load_field(records, row, MAXIMUM)))
            best = tl.where(i > 0, -1, load_field(records, row, ARGMAX).to(tl.int32))
            total = tl.where(i > 0, 0.0, tl.where(one_hot, 1.0, load_field(records, row, TOTAL)))
            for chunk in range(0, streamed):
                ids = chunk * BLOCK + block_lanes
                x = _left(rows, row_stride, records, row, vocab, drawn, i, ids)
                maximum = tl.max(x, 0)
                if maximum > largest:
                    best = tl.min(tl.where(x == maximum, ids, vocab), 0)
                    largest = maximum
            token = best
            if uniforms is not None:
                drawing = best >= 0
                if temperature is not None:
                    drawing = drawing & (tl.load(temperature + row) > 0)
                for chunk in range(0, tl.where(drawing, streamed, 0)):
                    ids = chunk * BLOCK + block_lanes
                    x = _left(rows, row_stride, records, row, vocab, drawn, i, ids)
                    total += tl.sum(_weights(x, largest, scale), 0)
                # A goal below 0 would be reached without mass.
                goal = tl.maximum(tl.load(uniforms + tl.cast(row, tl.int64) * k + i), 0.0) * total
                reached = 0.0
                found = -1
                last = 0
                for chunk in range(0, tl.where(drawing, chunks, 0)):
                    ids = chunk * BLOCK + block_lanes
                    w = _weights(_left(rows, row_stride, records, row, vocab, drawn, i, ids), largest, scale)
                    mass = tl.sum(w, 0)
                    if (found < 0) & (reached + mass > goal):
                        found = chunk * BLOCK + find_in_block(w, block_lanes, reached, goal)
                    last = tl.maximum(last, tl.max(tl.where(w > 0, ids, 0), 0))
                    reached += mass
                token = tl.where(drawing, tl.where(found < 0, last, found), best)
            out = tl.cast(row, tl.int64) * k + i
            logprob = logprob_of(rows, row_stride, records, row, tl.maximum(token, 0))
            tl.store(tokens + out, token.to(tl.int64))
            tl.store(logprobs + out, tl.where(token < 0, -INFINITY, logprob))
            drawn = tl.where(lanes == i, token, drawn)
        tl.store(status + row, row_status(records, row))


def _sample(
    logits: Tensor,
    uniforms: Tensor | None,
    k: int,
    greedy: Tensor | None,
    filters: tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None],
) -> tuple[Tensor, Tensor, Tensor]:
    num_rows, vocab = logits.shape
    tokens = torch.empty((num_rows, k), dtype=torch.int64, device=logits.device)
    logprobs = torch.empty((num_rows, k), dtype=torch.float32, device=logits.device)
    status = torch.empty(num_rows, dtype=torch.int32, device=logits.device)
    one_each = torch.arange(num_rows + 1, dtype=torch.int32, device=logits.device)
    records = row_records(logits, one_each, 1, *filters)
    device = device_of(logits)
    block = min(triton.next_power_of_2(max(vocab, 16)), device.vector_block(live=10))
    launch(
        sample_kernel,
        min(num_rows, device.vector_cores),
        logits,
        logits.stride(0),
        records,
        vocab,
        uniforms,
        greedy,
        tokens,
        logprobs,
        status,
        num_rows,
        k,
        triton.cdiv(vocab, block),
        K=triton.next_power_of_2(max(k, 16)),
        BLOCK=block,
    )
    return tokens, logprobs, status


def sample(
    logits: Tensor,
    uniforms: Tensor,
    *,
    temperature: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    tokens, logprobs, status = _sample(logits, uniforms, 1, None, (temperature, top_k, top_p, min_p))
    return tokens[:, 0], logprobs[:, 0], status


def sample_topk(
    logits: Tensor,
    uniforms: Tensor | None,
    k: int,
    *,
    temperature: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    # The tree of a greedy request needs more than one child: the best, scored at temperature 1.
    drawing = None if temperature is None else torch.where(temperature > 0, temperature, 1.0)
    tokens, logprobs, _ = _sample(logits, uniforms, k, temperature, (drawing, top_k, top_p, min_p))
    return tokens, logprobs
