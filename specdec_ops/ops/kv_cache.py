"""The paged KV cache: append candidates, keep the accepted ones, move lengths, take and return pages.

Token `s` of request `b` lives in slot `s`: block `block_table[b, s // block_size]`, offset `s % block_size`. A slot
past the table, or on a block id outside the cache (-1: no page), does not exist: reads and writes of it are skipped.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def kv_append(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    cu_nodes: Tensor,
) -> None:
    """Write the keys and values of the candidates to their slots: node `i` of request `b` to `context_lens[b] + i`.

    Rows are copied as they are. An int8 cache takes quantised rows; its scales are a cache of their own, appended by
    another call. `v_cache` may be a view of `k_cache` (one latent cache as keys and values).

    Args:
        k: `[N, H_kv, D]`, any dtype, last dimension of stride 1.
        v: `[N, H_kv, D_v]`, like `k`.
        k_cache: `[blocks, block_size, H_kv, D]` of `k`'s dtype, last dimension of stride 1; written in place.
        v_cache: `[blocks, block_size, H_kv, D_v]` of `v`'s dtype; written in place.
        block_table: int32 `[B, max_blocks]`.
        context_lens: int32 `[B]`, tokens already in the cache.
        cu_nodes: int32 `[B+1]`: the rows of request `b` are `cu_nodes[b]:cu_nodes[b+1]`.

    Raises:
        ValueError: an argument has the wrong shape, dtype, device or layout.

    Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", 2309.06180.
    """
    torch.ops.specdec.kv_append.default(k, v, k_cache, v_cache, block_table, context_lens, cu_nodes)


def kv_rollback(
    caches: Sequence[Tensor],
    block_table: Tensor,
    context_lens: Tensor,
    num_accepted: Tensor,
    path: Tensor | None = None,
) -> None:
    """Keep the root and the accepted nodes of each request, in all caches at once, and forget its other candidates.

    For `i` in `0..num_accepted[b]` the row in slot `context_lens[b] + path[b, i]` moves to slot `context_lens[b] + i`;
    then `context_lens[b] += num_accepted[b] + 1`. Nothing is written where a row is in place already.

    Args:
        caches: tensors `[blocks, block_size, ...]` of any dtypes and row shapes, of the same blocks and block_size:
            keys, values and scales of all layers. Rows `cache[block, offset]` are contiguous; no two caches overlap.
        block_table: int32 `[B, max_blocks]`.
        context_lens: int32 `[B]`, tokens in the cache before the candidates; advanced in place.
        num_accepted: int32 `[B]`, accepted drafts. Negative: the request is left alone. More than `path` holds: all
            that it holds.
        path: int32 `[B, P]`, node of the root (0) and of each accepted draft, ascending. An entry below its own index
            moves nothing. None: the candidates are chains, whose rows are in place.

    Raises:
        ValueError: an argument has the wrong shape, dtype, device or layout.

    Source: Miao et al., "SpecInfer", 2305.09781.
    """
    torch.ops.specdec.kv_rollback.default(caches, block_table, context_lens, num_accepted, path)


def kv_truncate(context_lens: Tensor, new_lens: Tensor) -> None:
    """Go back to an earlier length: `context_lens = max(0, min(context_lens, new_lens))`, in place.

    Args:
        context_lens: int32 `[B]`, tokens in the cache.
        new_lens: int32 `[B]`; a length that is not shorter changes nothing.

    Raises:
        ValueError: an argument has the wrong shape, dtype, device or layout.
    """
    torch.ops.specdec.kv_truncate.default(context_lens, new_lens)


def blocks_reserve(
    block_table: Tensor,
    free_list: Tensor,
    num_free: Tensor,
    context_lens: Tensor,
    num_new: Tensor,
    block_size: int,
) -> Tensor:
    """Take pages from the pool so that slots `0..context_lens + num_new` (exclusive) of every request are backed.

    Requests are served in order, each with all the pages it lacks or with none of them.

    Args:
        block_table: int32 `[B, max_blocks]`, -1 where there is no page; filled in place.
        free_list: int32 `[F]`, a stack of the ids of free pages, taken from the top; its entries stay as they are.
        num_free: int32 `[1]`, height of the stack; lowered in place.
        context_lens: int32 `[B]`, tokens in the cache.
        num_new: int32 `[B]`, tokens to come.
        block_size: tokens a page.

    Returns:
        int32 `[B]` status: 16 where the pool or the table is too small for the request, else 0.

    Raises:
        ValueError: an argument has the wrong shape, dtype, device, layout or range.
    """
    return torch.ops.specdec.blocks_reserve.default(block_table, free_list, num_free, context_lens, num_new, block_size)


def blocks_release(
    block_table: Tensor, free_list: Tensor, num_free: Tensor, context_lens: Tensor, block_size: int
) -> None:
    """Return the pages past the last token of every request to the pool; `context_lens = 0` returns all.

    Args:
        block_table: int32 `[B, max_blocks]`; the entries of returned pages become -1 in place.
        free_list: int32 `[F]`, a stack of the ids of free pages; pushed in place. A page that it has no room for (the
            pool is corrupt, or `F` is less than its pages) is dropped.
        num_free: int32 `[1]`, height of the stack; raised in place.
        context_lens: int32 `[B]`, tokens to keep.
        block_size: tokens a page.

    Raises:
        ValueError: an argument has the wrong shape, dtype, device, layout or range.
    """
    torch.ops.specdec.blocks_release.default(block_table, free_list, num_free, context_lens, block_size)


@torch.library.register_fake("specdec::kv_append")
def _(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    cu_nodes: Tensor,
) -> None:
    return None


@torch.library.register_fake("specdec::kv_rollback")
def _(
    caches: Sequence[Tensor],
    block_table: Tensor,
    context_lens: Tensor,
    num_accepted: Tensor,
    path: Tensor | None = None,
) -> None:
    return None


@torch.library.register_fake("specdec::kv_truncate")
def _(context_lens: Tensor, new_lens: Tensor) -> None:
    return None


@torch.library.register_fake("specdec::blocks_reserve")
def _(
    block_table: Tensor,
    free_list: Tensor,
    num_free: Tensor,
    context_lens: Tensor,
    num_new: Tensor,
    block_size: int,
) -> Tensor:
    return torch.empty_like(context_lens)


@torch.library.register_fake("specdec::blocks_release")
def _(block_table: Tensor, free_list: Tensor, num_free: Tensor, context_lens: Tensor, block_size: int) -> None:
    return None
