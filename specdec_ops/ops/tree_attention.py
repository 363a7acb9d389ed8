"""Attention of draft trees over a paged KV cache."""

import torch
from torch import Tensor


def tree_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    cu_nodes: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float,
    softcap: float = 0.0,
    window: int = 0,
    depth: Tensor | None = None,
    sinks: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    max_nodes: int,
) -> tuple[Tensor, Tensor]:
    """Each node attends to its request's committed context, its ancestors and itself.

    Node `i` of request `b` is row `cu_nodes[b] + i` of `q`; its own key and value are in slot `context_lens[b] + i`
    already. Slot `s` is row `s % block_size` of block `block_table[b, s // block_size]`; slots whose block id is not in
    the cache, and slots past the table, are seen by nobody and never read. A contiguous cache is one block a request.
    The score of a visible key is `scale * (q @ k)`, then `softcap * tanh(score / softcap)` if `softcap > 0`.

    Args:
        q: float32, bfloat16 or float16 `[N, H, D_qk]`, any strides but 1 in the last dimension.
        k_cache: `[blocks, block_size, H_kv, D_qk]` of `q`'s dtype or int8, any strides but 1 in the last dimension;
            `H` is a multiple of `H_kv`, query head `h` reads KV head `h // (H / H_kv)`.
        v_cache: `[blocks, block_size, H_kv, D_v]` of `k_cache`'s dtype; may be a view of `k_cache` (MLA). Values must
            be finite, also where a node does not see them.
        block_table: int32 `[B, max_blocks]`.
        context_lens: int32 `[B]`, slots that every node of the request sees; a negative one counts as 0.
        cu_nodes: int32 `[B + 1]`; decreasing entries and entries past `N` are cut.
        mask: int64 `[N, W]` with `W >= ceil(max_nodes / 64)`, bit `j` of row `i` = node `i` sees node `j` of its
            request (`tree_mask`); None means chains: node `i` sees nodes `0..i`.
        scale: factor of the scores, usually `D_qk ** -0.5`.
        softcap: bound of the scores, 0 for none. Each capped score, a small one too, is off by up to `3e-7 * softcap`:
            nothing to speak of at the usual 20 to 50, but 0.003 at 10000; leave out a cap that no score comes near.
        window: sliding window in positions, 0 for none: a key is visible only if the query's position less the key's is
            below `window`. Context slot `s` has position `s`, a node `context_lens[b] + depth`.
        depth: int32 `[N]`, used by `window`; None counts the mask's bits, or takes the node's index in a chain.
        sinks: float32 `[H]`, a logit a head that joins the softmax's denominator without a value.
        k_scale: float32 `[H_kv]` or `[blocks, block_size, H_kv]`, for an int8 cache: key = int8 * scale.
        v_scale: likewise for values, per head or per token as `k_scale`.
        max_nodes: upper bound of nodes a request; nodes beyond it count as not there.

    Returns:
        `out` `[N, H, D_v]` of `q`'s dtype and `lse` float32 `[N, H]`, the natural logarithm of the softmax's
        denominator, the sink included. Where nothing is visible `out` is 0 and `lse` -inf (the sink, if there is one);
        rows of `q` that belong to no request get 0 and -inf. Sums are float32.

    Raises:
        ValueError: an argument has the wrong shape, dtype, device, layout or range; on an NPU, `D_v` is above 512 or
            `D_qk` more than fits a core's memories.

    Sources: Miao et al., "SpecInfer", ASPLOS 2024 (tree attention); Dao et al., "Flash-Decoding", 2023.
    """
    return torch.ops.specdec.tree_attention.default(
        q,
        k_cache,
        v_cache,
        block_table,
        context_lens,
        cu_nodes,
        mask,
        scale=scale,
        softcap=softcap,
        window=window,
        depth=depth,
        sinks=sinks,
        k_scale=k_scale,
        v_scale=v_scale,
        max_nodes=max_nodes,
    )


def merge_attention(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over two disjoint sets of keys from the results over each (split KV, shared prefix).

    Args:
        out_a, out_b: float32, bfloat16 or float16 `[N, H, D]`.
        lse_a, lse_b: float32 `[N, H]`, natural logarithms; -inf where nothing was visible: `out_a` or `out_b` may be
            anything there, also NaN. If `sinks` were given, then to one of the two only.

    Returns:
        `out` `[N, H, D]` and `lse` `[N, H]` as `tree_attention` over both sets would give; 0 and -inf where both
        inputs are -inf, NaN where one is NaN or +inf.

    Raises:
        ValueError: an argument has the wrong shape, dtype, device or layout.
    """
    return torch.ops.specdec.merge_attention.default(out_a, lse_a, out_b, lse_b)


@torch.library.register_fake("specdec::tree_attention")
def _(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    cu_nodes: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float,
    softcap: float = 0.0,
    window: int = 0,
    depth: Tensor | None = None,
    sinks: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    max_nodes: int,
) -> tuple[Tensor, Tensor]:
    out = q.new_empty((q.shape[0], q.shape[1], v_cache.shape[3]))
    return out, q.new_empty(q.shape[:2], dtype=torch.float32)


@torch.library.register_fake("specdec::merge_attention")
def _(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(out_a), torch.empty_like(lse_a)
