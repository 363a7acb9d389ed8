from collections.abc import Sequence

import torch
from torch import Tensor

from specdec_ops.ops.status import CACHE_EXHAUSTED
from specdec_ops.reference.tree import request_rows

_INT32_MAX = 2**31 - 1


def find_slot(block_row: list[int], num_blocks: int, block_size: int, s: int) -> tuple[int, int] | None:
    """Block and offset of token `s`, or None if it has no place."""
    if not 0 <= s < len(block_row) * block_size:
        return None
    block = block_row[s // block_size]
    return (block, s % block_size) if 0 <= block < num_blocks else None


def kv_append(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    cu_nodes: Tensor,
) -> None:
    requests = zip(block_table.tolist(), context_lens.tolist(), request_rows(cu_nodes, k.shape[0]), strict=True)
    for block_row, context, rows in requests:
        for i, row in enumerate(rows):
            slot = find_slot(block_row, k_cache.shape[0], k_cache.shape[1], context + i)
            if slot is not None:
                k_cache[slot] = k[row]
                v_cache[slot] = v[row]


def kv_rollback(
    caches: Sequence[Tensor],
    block_table: Tensor,
    context_lens: Tensor,
    num_accepted: Tensor,
    path: Tensor | None = None,
) -> None:
    for b, (block_row, context, last) in enumerate(
        zip(block_table.tolist(), context_lens.tolist(), num_accepted.tolist(), strict=True)
    ):
        if last < 0:
            continue
        if path is not None:
            last = min(last, path.shape[1] - 1)
            for i, node in enumerate(path[b, : last + 1].tolist()):
                if node <= i:  # in place, or no node: the i-th node of a path is never before i
                    continue
                for cache in caches:
                    source = find_slot(block_row, cache.shape[0], cache.shape[1], context + node)
                    target = find_slot(block_row, cache.shape[0], cache.shape[1], context + i)
                    if source is not None and target is not None:
                        cache[target] = cache[source].clone()
        context_lens[b] = min(context + last + 1, _INT32_MAX)


def kv_truncate(context_lens: Tensor, new_lens: Tensor) -> None:
    context_lens.copy_(torch.minimum(context_lens, new_lens).clamp(min=0))


def _pages_for(length: int, block_size: int) -> int:
    return -(-max(length, 0) // block_size)


def blocks_reserve(
    block_table: Tensor,
    free_list: Tensor,
    num_free: Tensor,
    context_lens: Tensor,
    num_new: Tensor,
    block_size: int,
) -> Tensor:
    stack = free_list[: max(0, int(num_free))].tolist()
    status = []
    for b, (context, new) in enumerate(zip(context_lens.tolist(), num_new.tolist(), strict=True)):
        needed = _pages_for(context + new, block_size)
        missing = [j for j, page in enumerate(block_table[b, :needed].tolist()) if page < 0]
        pages = stack[len(stack) - len(missing) :] if len(missing) <= len(stack) else [-1]
        # An entry that is no page can only be on the stack by corruption: it is not handed out.
        available = needed <= block_table.shape[1] and all(page >= 0 for page in pages)
        status.append(0 if available else CACHE_EXHAUSTED)
        if available:
            for j in missing:
                block_table[b, j] = stack.pop()
    num_free.fill_(len(stack))
    return torch.tensor(status, dtype=torch.int32, device=block_table.device)


def blocks_release(
    block_table: Tensor, free_list: Tensor, num_free: Tensor, context_lens: Tensor, block_size: int
) -> None:
    stack = free_list[: max(0, int(num_free))].tolist()
    for b, context in enumerate(context_lens.tolist()):
        # Last page first: reserving again gives the pages back in the order they had.
        for j in reversed(range(_pages_for(context, block_size), block_table.shape[1])):
            if block_table[b, j] >= 0 and len(stack) < len(free_list):
                free_list[len(stack)] = block_table[b, j]
                stack.append(int(block_table[b, j]))
            block_table[b, j] = -1
    num_free.fill_(len(stack))
