from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdec_ops.ops import status as bits
from specdec_ops.triton.runtime import device_of, launch

CACHE_EXHAUSTED = tl.constexpr(bits.CACHE_EXHAUSTED)
INT32_MAX = tl.constexpr(2**31 - 1)


@triton.jit
def _find_block(block_table, b, max_blocks, num_blocks, block_size, slot):
    """The block of int64 `slot`, or -1 where it has no place."""
    entry = slot // block_size
    block = tl.load(
        block_table + tl.cast(b, tl.int64) * max_blocks + entry, mask=(slot >= 0) & (entry < max_blocks), other=-1
    )
    return tl.where((block >= 0) & (block < num_blocks), block, -1).to(tl.int64)


@triton.jit
def append_kernel(
    x,
    cache,
    block_table,
    context_lens,
    cu_nodes,
    x_node,
    x_head,
    cache_block,
    cache_offset,
    cache_head,
    num_nodes,
    heads,
    size,
    max_blocks,
    num_blocks,
    block_size,
    tasks,
    parts,
    BLOCK: tl.constexpr,
):
    # `parts` programs share the nodes of a request.
    for task in range(tl.program_id(0), tasks, tl.num_programs(0)):
        b = task // parts
        begin = tl.maximum(tl.load(cu_nodes + b), 0)
        end = tl.minimum(tl.load(cu_nodes + b + 1), num_nodes)
        context = tl.load(context_lens + b).to(tl.int64)
        for node in range(begin + task % parts, end, parts):
            slot = context + node - begin
            block = _find_block(block_table, b, max_blocks, num_blocks, block_size, slot)
            if block >= 0:
                source = x + tl.cast(node, tl.int64) * x_node
                target = cache + block * cache_block + (slot % block_size) * cache_offset
                for head in range(0, heads):
                    source_row = source + tl.cast(head, tl.int64) * x_head
                    target_row = target + tl.cast(head, tl.int64) * cache_head
                    for start in range(0, size, BLOCK):
                        lane = start + tl.arange(0, BLOCK)
                        row = tl.load(source_row + lane, mask=lane < size)
                        tl.store(target_row + lane, row, mask=lane < size)


@triton.jit
def rollback_kernel(
    pointers,
    block_table,
    context_lens,
    num_accepted,
    path,
    cache_block,
    cache_offset,
    size,
    path_width,
    max_blocks,
    num_blocks,
    block_size,
    tasks,
    columns,
    num_caches,
    TYPE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # A task moves one stretch of columns of all accepted rows of a request, ascending: the i-th node of a path is never
    # before i, so that no row is overwritten before it has moved.
    for task in range(tl.program_id(0), tasks, tl.num_programs(0)):
        b = task // (columns * num_caches)
        cache = tl.load(pointers + task // columns % num_caches).to(tl.pointer_type(TYPE))
        lane = (task % columns) * BLOCK + tl.arange(0, BLOCK)
        context = tl.load(context_lens + b).to(tl.int64)
        last = tl.minimum(tl.load(num_accepted + b), path_width - 1)
        for i in range(0, last + 1):
            node = tl.load(path + tl.cast(b, tl.int64) * path_width + i)
            source = tl.where(node > i, context + node, -1)
            target = tl.where(node > i, context + i, -1)
            source_block = _find_block(block_table, b, max_blocks, num_blocks, block_size, source)
            target_block = _find_block(block_table, b, max_blocks, num_blocks, block_size, target)
            if (source_block >= 0) & (target_block >= 0):
                source_row = cache + source_block * cache_block + (source % block_size) * cache_offset
                target_row = cache + target_block * cache_block + (target % block_size) * cache_offset
                row = tl.load(source_row + lane, mask=lane < size)
                tl.store(target_row + lane, row, mask=lane < size)


@triton.jit
def advance_lengths_kernel(context_lens, num_accepted, path_width, batch):
    for b in range(tl.program_id(0), batch, tl.num_programs(0)):
        context = tl.load(context_lens + b).to(tl.int64)
        last = tl.minimum(tl.load(num_accepted + b), path_width - 1).to(tl.int64)
        advanced = tl.minimum(context + last + 1, INT32_MAX)
        tl.store(context_lens + b, tl.where(last >= 0, advanced, context).to(tl.int32))


@triton.jit
def truncate_kernel(context_lens, new_lens, batch):
    for b in range(tl.program_id(0), batch, tl.num_programs(0)):
        tl.store(context_lens + b, tl.maximum(tl.minimum(tl.load(context_lens + b), tl.load(new_lens + b)), 0))


@triton.jit
def _pages_for(length, block_size):
    return (tl.maximum(length, 0) + block_size - 1) // block_size


@triton.jit
def reserve_kernel(
    block_table,
    free_list,
    num_free,
    context_lens,
    num_new,
    status,
    block_size,
    max_blocks,
    free_size,
    batch,
):
    # One program: requests take from the stack in order.
    free = tl.minimum(tl.maximum(tl.load(num_free), 0), free_size)
    for b in range(0, batch):
        table = block_table + tl.cast(b, tl.int64) * max_blocks
        length = tl.load(context_lens + b).to(tl.int64) + tl.load(num_new + b)
        needed = _pages_for(length, block_size)
        present = tl.minimum(needed, max_blocks).to(tl.int32)
        missing = 0
        for j in range(0, present):
            missing += (tl.load(table + j) < 0).to(tl.int32)
        # An entry that is no page can only be on the stack by corruption: it is not handed out.
        available = ((needed <= max_blocks) & (missing <= free)).to(tl.int32)
        for i in range(free - missing * available, free):
            available = tl.minimum(available, (tl.load(free_list + i) >= 0).to(tl.int32))
        for j in range(0, present * available):
            if tl.load(table + j) < 0:
                free -= 1
                tl.store(table + j, tl.load(free_list + free))
        tl.store(status + b, (1 - available) * CACHE_EXHAUSTED)
    tl.store(num_free, free)


@triton.jit
def release_kernel(
    block_table,
    free_list,
    num_free,
    context_lens,
    block_size,
    max_blocks,
    free_size,
    batch,
):
    free = tl.minimum(tl.maximum(tl.load(num_free), 0), free_size)
    for b in range(0, batch):
        table = block_table + tl.cast(b, tl.int64) * max_blocks
        kept = tl.minimum(_pages_for(tl.load(context_lens + b).to(tl.int64), block_size), max_blocks).to(tl.int32)
        # Last page first: reserving again gives the pages back in the order they had.
        for i in range(0, max_blocks - kept):
            page = tl.load(table + max_blocks - 1 - i)
            if (page >= 0) & (free < free_size):
                tl.store(free_list + free, page)
                free += 1
            tl.store(table + max_blocks - 1 - i, -1)
    tl.store(num_free, free)


def _bits(x: Tensor) -> Tensor:
    """The same bytes as integers: copies need no other type."""
    return x.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


def kv_append(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    cu_nodes: Tensor,
) -> None:
    device = device_of(k_cache)
    batch, max_blocks = block_table.shape
    for x, cache in ((_bits(k), _bits(k_cache)), (_bits(v), _bits(v_cache))):
        nodes, heads, size = x.shape
        x_head, cache_head = x.stride(1), cache.stride(2)
        if x_head == size == cache_head:  # heads lie side by side: one row
            heads, size = 1, heads * size
        parts = min(triton.cdiv(device.vector_cores, max(batch, 1)), max(nodes, 1))
        launch(
            append_kernel,
            min(batch * parts, device.vector_cores) if x.numel() else 0,
            x,
            cache,
            block_table,
            context_lens,
            cu_nodes,
            x.stride(0),
            x_head,
            cache.stride(0),
            cache.stride(1),
            cache_head,
            nodes,
            heads,
            size,
            max_blocks,
            cache.shape[0],
            cache.shape[1],
            batch * parts,
            parts,
            BLOCK=min(triton.next_power_of_2(max(size, 16)), device.vector_block(live=1, itemsize=x.element_size())),
        )


@lru_cache(maxsize=64)
def _pointer_table(pointers: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(pointers, dtype=torch.int64, device=device)


def kv_rollback(
    caches: Sequence[Tensor],
    block_table: Tensor,
    context_lens: Tensor,
    num_accepted: Tensor,
    path: Tensor | None = None,
) -> None:
    device = device_of(block_table)
    batch, max_blocks = block_table.shape
    # One launch for all caches of one geometry: all layers' keys and values as a rule.
    groups = defaultdict(list)
    for cache in caches if path is not None else ():
        size = cache[0, 0].numel() if cache.numel() else 0
        groups[cache.element_size(), size, cache.stride()[:2]].append(cache)
    for (itemsize, size, (block_stride, offset_stride)), group in groups.items():
        assert path is not None
        block = min(triton.next_power_of_2(max(size, 16)), device.vector_block(live=1, itemsize=itemsize))
        columns = triton.cdiv(size, block)
        tasks = batch * columns * len(group)
        launch(
            rollback_kernel,
            min(tasks, device.vector_cores),
            _pointer_table(tuple(cache.data_ptr() for cache in group), block_table.device),
            block_table,
            context_lens,
            num_accepted,
            path,
            block_stride,
            offset_stride,
            size,
            path.shape[1],
            max_blocks,
            group[0].shape[0],
            group[0].shape[1],
            tasks,
            columns,
            len(group),
            TYPE=getattr(tl, f"int{8 * itemsize}"),
            BLOCK=block,
        )
    width = path.shape[1] if path is not None else 2**31 - 1
    launch(advance_lengths_kernel, min(batch, device.vector_cores), context_lens, num_accepted, width, batch)


def kv_truncate(context_lens: Tensor, new_lens: Tensor) -> None:
    batch = context_lens.shape[0]
    launch(truncate_kernel, min(batch, device_of(context_lens).vector_cores), context_lens, new_lens, batch)


def blocks_reserve(
    block_table: Tensor,
    free_list: Tensor,
    num_free: Tensor,
    context_lens: Tensor,
    num_new: Tensor,
    block_size: int,
) -> Tensor:
    batch, max_blocks = block_table.shape
    status = torch.empty_like(context_lens)
    launch(
        reserve_kernel,
        1,
        block_table,
        free_list,
        num_free,
        context_lens,
        num_new,
        status,
        block_size,
        max_blocks,
        free_list.shape[0],
        batch,
    )
    return status


def blocks_release(
    block_table: Tensor, free_list: Tensor, num_free: Tensor, context_lens: Tensor, block_size: int
) -> None:
    batch, max_blocks = block_table.shape
    launch(
        release_kernel,
        1,
        block_table,
        free_list,
        num_free,
        context_lens,
        block_size,
        max_blocks,
        free_list.shape[0],
        batch,
    )
