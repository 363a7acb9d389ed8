import torch
import triton
import triton.language as tl
from torch import Tensor

from specdec_ops.triton.runtime import device_of, launch


@triton.jit
def ngram_propose_kernel(
    history,
    lengths,
    tokens,
    num_found,
    capacity,
    min_n,
    max_n,
    num_draft,
    batch,
    BLOCK: tl.constexpr,
):
    for b in range(tl.program_id(0), batch, tl.num_programs(0)):
        row = history + tl.cast(b, tl.int64) * capacity
        length = tl.minimum(tl.maximum(tl.load(lengths + b), 0), capacity).to(tl.int32)
        # The longest match wins, then the earliest: `matched` is how far the tokens before `end` equal the last ones.
        longest = min_n - 1
        found = length
        for start in range(1, length, BLOCK):
            end = start + tl.arange(0, BLOCK)
            going = tl.where(end < length, 1, 0)
            matched = tl.zeros([BLOCK], tl.int32)
            for j in range(1, tl.minimum(max_n, length - 1) + 1):
                inside = (end >= j) & (end < length)
                before = tl.load(row + end - j, mask=inside, other=-1).to(tl.int32)
                same = inside & (before == tl.load(row + length - j).to(tl.int32))
                going = tl.where(same, going, 0)
                matched += going
            best = tl.max(matched, 0)
            if best > longest:
                longest = best
                found = tl.min(tl.where(matched == best, end, length), 0)
        count = tl.minimum(length - found, num_draft)
        for i in range(0, num_draft):
            token = tl.load(row + found + i, mask=i < count, other=-1)
            tl.store(tokens + tl.cast(b, tl.int64) * num_draft + i, token)
        tl.store(num_found + b, count)


def ngram_propose(history: Tensor, lengths: Tensor, *, min_n: int, max_n: int, num_draft: int) -> tuple[Tensor, Tensor]:
    batch, capacity = history.shape
    tokens = torch.empty((batch, num_draft), dtype=torch.int64, device=history.device)
    num_found = torch.empty(batch, dtype=torch.int32, device=history.device)
    launch(
        ngram_propose_kernel,
        min(batch, device_of(history).vector_cores),
        history,
        lengths,
        tokens,
        num_found,
        capacity,
        min_n,
        max_n,
        num_draft,
        batch,
        BLOCK=min(max(triton.next_power_of_2(capacity), 16), 1024),
    )
    return tokens, num_found
