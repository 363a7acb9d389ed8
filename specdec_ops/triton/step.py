import torch
import triton
import triton.language as tl
from torch import Tensor

from specdec_ops.triton.runtime import device_of, launch


@triton.jit
def advance_kernel(
    history,
    lengths,
    finished,
    tokens,
    num_accepted,
    eos_ids,
    max_lens,
    root,
    capacity,
    width,
    eos_count,
    eos_stride,
    batch,
):
    for b in range(tl.program_id(0), batch, tl.num_programs(0)):
        row = history + tl.cast(b, tl.int64) * capacity
        length = tl.minimum(tl.maximum(tl.load(lengths + b), 0), capacity)
        last = tl.load(row + length - 1, mask=length > 0, other=0)
        if tl.load(finished + b) == 0:
            limit = tl.minimum(tl.load(max_lens + b), capacity)
            ended = (length >= limit).to(tl.int32)
            going = 1 - ended  # 0: a missing token has ended the list, if not the request
            for i in range(0, tl.minimum(tl.load(num_accepted + b) + 1, width)):
                token = tl.load(tokens + tl.cast(b, tl.int64) * width + i)
                going = tl.where(token < 0, 0, going)
                if going > 0:
                    tl.store(row + length, token)
                    last = token
                    length += 1
                    ended = (length >= limit).to(tl.int32)
                    for e in range(0, eos_count):
                        eos = tl.load(eos_ids + tl.cast(b, tl.int64) * eos_stride + e)
                        ended = tl.where(token == eos, 1, ended)
                    going = 1 - ended
            tl.store(lengths + b, length)
            tl.store(finished + b, ended.to(tl.int8))
        tl.store(root + b, last)


@triton.jit
def _probability(rate):
    return tl.where(rate == rate, tl.minimum(tl.maximum(rate, 0.0), 1.0), 0.0)


@triton.jit
def adapt_draft_length_kernel(
    rate,
    drafted,
    accepted,
    num_draft,
    decay,
    min_draft,
    max_draft,
    draft_cost,
    batch,
    BLOCK: tl.constexpr,
):
    for start in range(tl.program_id(0) * BLOCK, batch, tl.num_programs(0) * BLOCK):
        b = start + tl.arange(0, BLOCK)
        before = tl.load(rate + b, mask=b < batch, other=0.0)
        tried = tl.load(drafted + b, mask=b < batch, other=0)
        successes = tl.minimum(tl.maximum(tl.load(accepted + b, mask=b < batch, other=0), 0), tried)
        # Each draft up to the first rejection was a trial; a step weighs as many trials as it had.
        trials = tl.minimum(successes + 1, tried).to(tl.float32)
        p = _probability(before)
        drafts = tl.where(tried > 0, tried, 1).to(tl.float32)
        moved = p + (1.0 - decay) * (successes.to(tl.float32) - p * trials) / drafts
        after = tl.where(tried > 0, moved, before)
        tl.store(rate + b, after, mask=b < batch)
        a = _probability(after)
        power = tl.full([BLOCK], 1.0, tl.float32)
        tokens = tl.zeros([BLOCK], tl.float32)  # 1 + a + ... + a^k
        fastest = tl.full([BLOCK], -1.0, tl.float32)
        best = tl.zeros([BLOCK], tl.int32)
        for k in range(0, max_draft + 1):
            tokens += power
            power = power * a
            if k >= min_draft:
                speed = tokens / (1.0 + draft_cost * tl.cast(k, tl.float32))
                best = tl.where(speed > fastest, tl.cast(k, tl.int32), best)
                fastest = tl.maximum(speed, fastest)
        tl.store(num_draft + b, best, mask=b < batch)


def advance(
    history: Tensor,
    lengths: Tensor,
    finished: Tensor,
    tokens: Tensor,
    num_accepted: Tensor,
    eos_ids: Tensor,
    max_lens: Tensor,
) -> Tensor:
    batch, capacity = history.shape
    root = torch.empty(batch, dtype=torch.int64, device=history.device)
    launch(
        advance_kernel,
        min(batch, device_of(history).vector_cores),
        history,
        lengths,
        finished.view(torch.int8),
        tokens,
        num_accepted,
        eos_ids,
        max_lens,
        root,
        capacity,
        tokens.shape[1],
        eos_ids.shape[-1],
        eos_ids.shape[-1] if eos_ids.dim() == 2 and eos_ids.shape[0] > 1 else 0,
        batch,
    )
    return root


def adapt_draft_length(
    rate: Tensor,
    drafted: Tensor,
    accepted: Tensor,
    *,
    decay: float = 0.9,
    min_draft: int = 1,
    max_draft: int = 8,
    draft_cost: float = 0.1,
) -> Tensor:
    batch = rate.shape[0]
    num_draft = torch.empty(batch, dtype=torch.int32, device=rate.device)
    block = 256
    launch(
        adapt_draft_length_kernel,
        min(triton.cdiv(batch, block), device_of(rate).vector_cores),
        rate,
        drafted,
        accepted,
        num_draft,
        decay,
        min_draft,
        max_draft,
        draft_cost,
        batch,
        BLOCK=block,
    )
    return num_draft
