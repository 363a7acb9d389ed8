import torch
import triton
import triton.language as tl
from torch import Tensor

from specdec_ops.triton.distribution import (
    find_in_block,
    logprob_of,
    probabilities,
    row_records,
    row_status,
)
from specdec_ops.triton.runtime import device_of, launch


@triton.jit
def _rest(rows, row_stride, records, row, vocab, drawn, count, ids):
    """The row's distribution at `ids`, without the tokens drawn so far."""
    p = probabilities(rows, row_stride, records, row, vocab, ids)
    lanes = tl.arange(0, drawn.shape[0])
    for i in range(0, count):
        p = tl.where(ids == tl.sum(tl.where(lanes == i, drawn, 0), 0), 0.0, p)
    return p


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
    LOG_BLOCK: tl.constexpr,
):
    """`k` draws a row without replacement; the best first where there is no uniform or the temperature is 0."""
    lanes = tl.arange(0, K)
    for row in range(tl.program_id(0), num_rows, tl.num_programs(0)):
        drawn = tl.full([K], -1, tl.int32)
        mass = 1.0
        for i in range(0, k):
            if i > 0:
                mass = 0.0
                for chunk in range(0, chunks):
                    ids = chunk * BLOCK + tl.arange(0, BLOCK)
                    mass += tl.sum(_rest(rows, row_stride, records, row, vocab, drawn, i, ids), 0)
            best_first = True
            goal = 0.0
            if uniforms is not None:
                goal = tl.load(uniforms + tl.cast(row, tl.int64) * k + i) * mass
                best_first = False
                if temperature is not None:
                    best_first = (tl.load(temperature + row) > 0) == 0
            reached = 0.0
            token = -1  # found by its place in the cumulative mass
            last = 0
            best = -1
            largest = 0.0
            for chunk in range(0, tl.where(mass > 0, chunks, 0)):
                ids = chunk * BLOCK + tl.arange(0, BLOCK)
                p = _rest(rows, row_stride, records, row, vocab, drawn, i, ids)
                block_mass = tl.sum(p, 0)
                maximum = tl.max(p, 0)
                if maximum > largest:
                    best = tl.min(tl.where(p == maximum, ids, vocab), 0)
                    largest = maximum
                if (token < 0) & (reached + block_mass > goal):
                    token = find_in_block(p, ids, reached, goal, LOG_BLOCK, BLOCK)
                last = tl.maximum(last, tl.max(tl.where(p > 0, ids, 0), 0))
                reached += block_mass
            token = tl.where(best_first, best, tl.where(token < 0, last, token))
            token = tl.where(best < 0, -1, token)
            out = tl.cast(row, tl.int64) * k + i
            logprob = logprob_of(rows, row_stride, records, row, tl.maximum(token, 0))
            tl.store(tokens + out, token.to(tl.int64))
            tl.store(logprobs + out, tl.where(token < 0, float("-inf"), logprob))
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
        LOG_BLOCK=block.bit_length() - 1,
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
