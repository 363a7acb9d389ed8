"""`torch_npu.npu_fused_infer_attention_score` for verification, with lengths that stay on the device.

torch_npu's operator takes lengths as host lists, which makes every step wait for the device, and masks of full width.
This one takes tensors, and masks as the bits of `tree_mask`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specdec_ops.integrations import check_not_served, cu_nodes_of_equal, pack_bits
from specdec_ops.ops import tree_attention

ALL_TOKENS = 2147483647
NOT_SERVED = dict.fromkeys(
    (
        "pse_shift",
        "dequant_scale1",
        "quant_scale1",
        "dequant_scale2",
        "quant_scale2",
        "quant_offset2",
        "antiquant_scale",
        "antiquant_offset",
        "query_padding_size",
        "kv_padding_size",
        "key_antiquant_scale",
        "key_antiquant_offset",
        "value_antiquant_scale",
        "value_antiquant_offset",
        "key_shared_prefix",
        "value_shared_prefix",
        "actual_shared_prefix_len",
        "query_rope",
        "key_rope",
        "key_rope_antiquant_scale",
    )
) | {"antiquant_mode": 0, "key_antiquant_mode": 0, "value_antiquant_mode": 0}


def _lengths(value: Tensor | Sequence[int], device: torch.device) -> Tensor:
    return value.to(device) if isinstance(value, Tensor) else torch.tensor(value, device=device)


def _candidates_mask(
    hidden: Tensor | None, rows: int, most: int, cu_nodes: Tensor, nodes: Tensor, kv_lens: Tensor
) -> tuple[Tensor, int]:
    """Words of the candidates' own columns of a mask that hides keys, and the most candidates that it has rows for."""
    batch, device = kv_lens.shape[0], kv_lens.device
    if hidden is None:
        hidden = torch.zeros((1, 1, 1), dtype=torch.bool, device=device).expand(1, most, most)
    hidden = hidden[None] if hidden.ndim == 2 else hidden.flatten(0, -3)
    most, keys = min(most, hidden.shape[1]), hidden.shape[2]
    row = torch.arange(rows, device=device)
    request = torch.searchsorted(cu_nodes[1:].contiguous(), row.to(cu_nodes.dtype), right=True).clamp(max=batch - 1)
    node = (row - cu_nodes[request]).clamp(max=most - 1)
    other = torch.arange((most + 63) // 64 * 64, device=device)
    column = ((kv_lens - nodes)[request, None] + other).clamp(0, keys - 1)
    sees = ~hidden.expand(batch, -1, -1)[request[:, None], node[:, None], column].bool()
    return pack_bits(sees & (other < nodes[request, None])), most


def npu_fused_infer_attention_score(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    atten_mask: Tensor | None = None,
    actual_seq_lengths: Tensor | Sequence[int] | None = None,
    actual_seq_lengths_kv: Tensor | Sequence[int],
    block_table: Tensor,
    num_heads: int = 1,
    scale: float = 1.0,
    pre_tokens: int = ALL_TOKENS,
    next_tokens: int = ALL_TOKENS,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    sparse_mode: int = 0,
    inner_precise: int = 0,
    block_size: int = 0,
    softmax_lse_flag: bool = False,
    **others: Any,
) -> tuple[Tensor, Tensor]:
    """Attention of the last tokens of each request, its candidates, over a paged cache that holds them already.

    Args:
        query: `[T, N, D]` in the layout TND; `[B, S, N * D]`, `[B, S, N, D]` or `[B, N, S, D]` in BSH, BSND or BNSD,
            where each request has `S` candidates.
        key, value: `[blocks, block_size, H_kv * D]` or `[blocks, H_kv, block_size, D]`.
        atten_mask: with `sparse_mode` 0, which candidates see which: int64 `[T, W]`, the bits of `tree_mask`; or bool
            `[Q, S_kv]`, `[B, Q, S_kv]` or `[B, 1, Q, S_kv]`, true where hidden, of which the columns of the candidates
            are read. Not read in the other modes.
        actual_seq_lengths: `[B]`. TND: ends of the requests' rows. Else: how many of its `S` rows are candidates, all
            by default; the output of the others is 0. A tensor is not read on the host.
        actual_seq_lengths_kv: tokens in the cache, the candidates included, `[B]`; likewise.
        block_table: int32 `[B, max_blocks]`.
        num_heads, num_key_value_heads: heads of query and cache; 0: as many.
        scale: factor of the scores.
        pre_tokens: in `sparse_mode` 4, how many positions back a key may lie.
        next_tokens, inner_precise, block_size: not used.
        input_layout: TND, BSH, BSND or BNSD.
        sparse_mode: 0: all candidates see each other, or as `atten_mask` tells; 3: chains; 4: chains and a window.
        softmax_lse_flag: return the log-sum-exps.
        others: torch_npu's further arguments, where they ask for nothing (None, or a mode of 0).

    Returns:
        The output in the query's layout, and natural log-sum-exps float32 `[T, N, 1]` (TND) or `[B, N, S, 1]`; one 0
        without the flag.

    Raises:
        ValueError: a mode, layout or argument that is not served, or as `tree_attention`.
    """
    check_not_served(others, NOT_SERVED)
    if sparse_mode not in (0, 3, 4):
        raise ValueError(f"sparse_mode: expected 0, 3 or 4, got {sparse_mode}")
    if input_layout not in ("TND", "BSH", "BSND", "BNSD"):
        raise ValueError(f"input_layout: expected TND, BSH, BSND or BNSD, got {input_layout}")
    if actual_seq_lengths is None and input_layout == "TND":
        raise ValueError("actual_seq_lengths: expected with the layout TND, got None")
    device, kv_heads = query.device, num_key_value_heads or num_heads
    kv_lens = _lengths(actual_seq_lengths_kv, device)
    batch = kv_lens.shape[0]

    if input_layout == "TND":
        assert actual_seq_lengths is not None
        q, most = query, query.shape[0]
        cu_nodes = torch.nn.functional.pad(_lengths(actual_seq_lengths, device), (1, 0))
        nodes = cu_nodes.diff()
    else:
        q = query.transpose(1, 2) if input_layout == "BNSD" else query
        most = q.shape[1]
        q = q.reshape(batch * most, num_heads, -1)
        cu_nodes = cu_nodes_of_equal(batch, most, device)
        nodes = cu_nodes.diff() if actual_seq_lengths is None else _lengths(actual_seq_lengths, device).clamp(0, most)

    mask = None
    if sparse_mode == 0 and atten_mask is not None and atten_mask.dtype == torch.int64:
        mask, most = atten_mask, min(most, 64 * atten_mask.shape[1])
    elif sparse_mode == 0:
        mask, most = _candidates_mask(atten_mask, q.shape[0], most, cu_nodes, nodes, kv_lens)

    def pages(cache: Tensor) -> Tensor:  # [blocks, block_size, H_kv, D]
        return cache.transpose(1, 2) if cache.ndim == 4 else cache.unflatten(2, (kv_heads, -1))

    context_lens = kv_lens - nodes
    if input_layout != "TND" and actual_seq_lengths is not None:
        # The rows that are no candidates become requests of their own, without a page: nothing is read for them.
        context_lens = torch.stack([context_lens, torch.zeros_like(context_lens)], 1).flatten()
        block_table = torch.stack([block_table, torch.full_like(block_table, -1)], 1).flatten(0, 1)
        begin = cu_nodes[:-1]
        cu_nodes = torch.cat([torch.stack([begin, begin + nodes], 1).flatten(), cu_nodes[-1:]])
    out, lse = tree_attention(
        q,
        pages(key),
        pages(value),
        block_table,
        context_lens.int(),
        cu_nodes.int(),
        mask,
        scale=scale,
        window=pre_tokens + 1 if sparse_mode == 4 and pre_tokens < ALL_TOKENS else 0,
        max_nodes=max(most, 1),
    )
    lse = lse[:, :, None]
    if input_layout != "TND":
        lse = lse.unflatten(0, (batch, -1)).transpose(1, 2)
        out = out.unflatten(0, (batch, -1))
        out = out.flatten(2) if input_layout == "BSH" else out.transpose(1, 2) if input_layout == "BNSD" else out
    return out, lse if softmax_lse_flag else lse.new_zeros(1)
