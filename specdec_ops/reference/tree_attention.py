import math

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
    num_rows, heads, _ = q.shape
    num_blocks, block_size, kv_heads, d_v = v_cache.shape
    out = torch.zeros(num_rows, heads, d_v, dtype=torch.float64, device=q.device)
    lse = torch.full((num_rows, heads), -math.inf, dtype=torch.float64, device=q.device)
    end = min(max(int(cu_nodes[0]), 0), num_rows)
    for b in range(len(context_lens)):
        first, end = end, min(max(int(cu_nodes[b + 1]), end), num_rows)
        nodes, context = min(end - first, max_nodes), max(int(context_lens[b]), 0)
        slots = torch.arange(min(context + nodes, block_table.shape[1] * block_size), device=q.device)
        if nodes == 0:
            continue
        rows = slice(first, first + nodes)
        blocks = block_table[b, slots // block_size].long()
        in_cache = (blocks >= 0) & (blocks < num_blocks)
        blocks, offsets = torch.where(in_cache, blocks, 0), slots % block_size
        keys, values = _read(k_cache, k_scale, blocks, offsets), _read(v_cache, v_scale, blocks, offsets)

        # Among nodes: sees[i, j] = node i sees node j.
        index = torch.arange(nodes, device=q.device)
        if mask is None:
            sees = index[:, None] >= index
            depths = index
        else:
            sees = (mask[rows][:, index // 64] >> (index % 64)) & 1 > 0
            depths = sees.sum(1) - 1
        if depth is not None:
            depths = depth[rows].long()
        # visible[i, s] = node i sees slot s.
        is_node, node = slots >= context, (slots - context).clamp(min=0)
        visible = in_cache & (~is_node | sees[:, node])
        if window > 0:
            positions = torch.where(is_node, context + depths[node], slots)
            visible = visible & (context + depths[:, None] - positions < window)

        group = heads // kv_heads
        keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
        scores = torch.einsum("ihd,shd->ihs", q[rows].double(), keys) * scale
        if softcap > 0:
            scores = softcap * torch.tanh(scores / softcap)
        scores = scores.masked_fill(~visible[:, None], -math.inf)
        if sinks is not None:
            scores = torch.cat([scores, sinks.double().expand(nodes, heads)[..., None]], 2)
        lse[rows] = torch.logsumexp(scores, 2)
        weights = torch.softmax(scores, 2).nan_to_num(0.0)[:, :, : len(slots)]
        out[rows] = torch.einsum("ihs,shd->ihd", weights, values)
    return out.to(q.dtype), lse.float()


def _read(cache: Tensor, scale: Tensor | None, blocks: Tensor, offsets: Tensor) -> Tensor:
    rows = cache[blocks, offsets].double()
    if scale is not None:
        rows = rows * (scale if scale.dim() == 1 else scale[blocks, offsets]).double()[..., None]
    return rows


def merge_attention(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    lse = torch.logaddexp(lse_a.double(), lse_b.double())
    lse = lse.masked_fill(lse.isposinf(), math.nan)
    out = torch.zeros_like(out_a, dtype=torch.float64)
    for part, part_lse in ((out_a, lse_a), (out_b, lse_b)):
        weighted = torch.exp(part_lse.double() - lse)[..., None] * part.double()
        out += weighted.masked_fill(part_lse.isneginf()[..., None], 0.0)  # then the part may be anything
    return out.to(out_a.dtype), lse.float()
