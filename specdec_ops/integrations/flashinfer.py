"""FlashInfer's sampling, merging and paged attention with custom masks.

Where FlashInfer takes probabilities, the operators get their logarithm: logits up to a constant a row, -inf for 0.
Top-k and min-p are decided before, on the probabilities themselves, by torch's sort: logarithms merge near neighbours.
FlashInfer's log-sum-exps are to base 2, the operators' natural.

Random numbers come from `philox_uniform`, so that they are the same on every device but not FlashInfer's. `seed` and
`offset` may be ints or int64/uint64 tensors `[1]`, for the whole batch, or `[B]`, one a request: then a request draws
the same whatever else is in the batch (in `chain_speculative_sampling`, too, where FlashInfer reads the first seed
only). Without a seed they come from `generator`. As theirs, a seed must not be used twice with the same offset.
"""

import functools
import math
from typing import Any

import torch
from torch import Tensor

from specdec_ops.integrations import ANY, check_not_served, cu_nodes_of_equal, pack_bits
from specdec_ops.ops import merge_attention, philox_uniform, sample, tree_attention, verify_chain

SAMPLE_STREAM, CHAIN_STREAM = 0, 1
# Arguments of the attention wrappers that are not parameters here, for `check_not_served`. Those of the constructor but
# `backend` belong to CUDA graphs, for which `plan` would have to write where it wrote before.
WRAPPER_ARGUMENTS = {
    "use_cuda_graph": False,
    "use_tensor_cores": ANY,
    "backend": ANY,
    "jit_args": None,
    "jit_kwargs": None,
    "qo_indptr_buf": None,
    "paged_kv_indptr_buf": None,
    "paged_kv_indices_buf": None,
    "paged_kv_last_page_len_buf": None,
    "custom_mask_buf": None,
    "mask_indptr_buf": None,
    "paged_kv_indptr_buffer": None,
    "paged_kv_indices_buffer": None,
    "paged_kv_last_page_len_buffer": None,
}
PLAN_ARGUMENTS = {
    "pos_encoding_mode": "NONE",
    "rope_scale": ANY,  # of another pos_encoding_mode
    "rope_theta": ANY,
    "use_fp16_qk_reduction": ANY,
    "q_data_type": ANY,  # the tensors tell
    "kv_data_type": ANY,
    "data_type": ANY,
    "non_blocking": ANY,
    "prefix_len_ptr": None,
    "token_pos_in_items_ptr": None,
    "token_pos_in_items_len": 0,
    "max_item_len_ptr": None,
    "seq_lens": ANY,  # as the page tables tell
    "seq_lens_q": ANY,
    "block_tables": ANY,
    "max_token_per_sequence": ANY,
    "max_sequence_kv": ANY,
    "fixed_split_size": ANY,  # results never depend on the batch
    "disable_split_kv": ANY,
}
RUN_ARGUMENTS = {
    "q_scale": 1.0,
    "k_scale": 1.0,
    "v_scale": 1.0,
    "enable_pdl": ANY,
    "q_len_per_req": ANY,  # as planned
    "kv_cache_sf": None,
    "skip_softmax_threshold_scale_factor": None,
    "use_fp16_softmax": ANY,
    "uses_spcompress": False,
}


def _uniforms(
    batch: int,
    columns: int,
    stream: int,
    device: torch.device,
    generator: torch.Generator | None,
    seed: int | Tensor | None,
    offset: int | Tensor | None,
) -> Tensor:
    if seed is None:
        return torch.rand(batch, columns, generator=generator, device=device)
    if isinstance(seed, Tensor) != isinstance(offset, Tensor):
        raise ValueError("seed and offset: expected two tensors or two ints")

    def words(value: int | Tensor | None, name: str) -> Tensor:
        if not isinstance(value, Tensor):
            signed = ((value or 0) + 2**63) % 2**64 - 2**63  # the same 64 bits
            return torch.full((1,), signed, dtype=torch.int64, device=device)
        if value.dtype not in (torch.int64, torch.uint64) or value.ndim != 1 or value.shape[0] not in (1, batch):
            raise ValueError(
                f"{name}: expected int64 or uint64 [1] or [{batch}], got {value.dtype} {list(value.shape)}"
            )
        return value.view(torch.int64)

    seeds, offsets = words(seed, "seed"), words(offset, "offset")
    rows = max(seeds.shape[0], offsets.shape[0])
    lanes = columns if rows == batch else batch * columns  # of one seed, each request takes its own lanes
    return philox_uniform(seeds.expand(rows).contiguous(), offsets.expand(rows).contiguous(), lanes, stream).view(
        batch, columns
    )


def _per_row(name: str, value: float | Tensor | None, rows: int, dtype: torch.dtype, device: torch.device) -> Any:
    """`value` as a tensor `[rows]`; None stays None."""
    if value is None:
        return None
    if not isinstance(value, Tensor):
        return torch.full((rows,), value, dtype=dtype, device=device)
    # In FlashInfer's words, which its callers may look for.
    if value.ndim == 0:
        raise ValueError(f"{name}: Expected a 1D tensor of shape (batch_size,) or scalar, got a 0-dimensional tensor")
    if value.ndim > 1:
        raise ValueError(f"{name}: Expected a 1D tensor or scalar, got a {value.ndim}D tensor")
    if value.shape[0] != rows:
        raise ValueError(f"{name}: Sampling parameter tensor batch size mismatch: expected {rows}, got {len(value)}")
    return value.to(dtype)


def _keep_top_k(probs: Tensor, top_k: int | Tensor) -> Tensor:
    """Rows without what is below the `top_k`-th largest. A row with a NaN keeps it: NaN sorts as the largest."""
    rows, vocabulary = probs.shape
    if isinstance(top_k, Tensor):
        k = _per_row("top_k", top_k, rows, torch.int64, probs.device)
        k = torch.where((k > 0) & (k < vocabulary), k, vocabulary)
        last = probs.sort(1, descending=True).values.gather(1, k[:, None] - 1)
    else:
        last = probs.topk(top_k if 0 < top_k < vocabulary else vocabulary).values[:, -1:]
    return probs.masked_fill(probs < last, 0)


def _keep_top_p(probs: Tensor, top_p: float | Tensor) -> Tensor:
    """Rows without what is below the last of the smallest set of mass `top_p`; NaN as in `_keep_top_k`."""
    rows, vocabulary = probs.shape
    p = _per_row("top_p", top_p, rows, torch.float32, probs.device)[:, None]
    ordered = probs.sort(1, descending=True).values
    mass = ordered.cumsum(1)
    last = (mass < p * mass[:, -1:]).sum(1, keepdim=True).clamp(max=vocabulary - 1)
    return probs.masked_fill((probs < ordered.gather(1, last)) & (p < 1), 0)


def _draw(
    rows: Tensor,
    of_probs: bool,
    indices: Tensor | None,
    generator: torch.Generator | None,
    check_nan: bool,
    seed: int | Tensor | None,
    offset: int | Tensor | None,
    top_k: int | Tensor | None = None,
    top_p: float | Tensor | None = None,
    min_p: float | Tensor | None = None,
    filter_apply_order: str = "top_k_first",
) -> tuple[Tensor, Tensor]:
    if filter_apply_order not in ("top_k_first", "joint"):
        raise ValueError(f"filter_apply_order: expected top_k_first or joint, got {filter_apply_order}")
    if check_nan and bool(rows.isnan().any()):
        raise ValueError("the input contains NaN")
    dtype = torch.int32 if indices is None else indices.dtype
    if indices is not None:
        rows = rows[indices.long()]
    batch, device = rows.shape[0], rows.device
    if filter_apply_order == "joint" and top_p is not None:
        # Top-k of what is in the top-p set of all is what is in both.
        probs = rows if of_probs else rows.float().softmax(-1)
        rows, top_p = rows.masked_fill(_keep_top_p(probs.float(), top_p) == 0, 0 if of_probs else -math.inf), None
    if of_probs:
        rows = rows.float()
        if top_k is not None:
            rows, top_k = _keep_top_k(rows, top_k), None
        if min_p is not None:
            least = _per_row("min_p", min_p, batch, torch.float32, device)[:, None] * rows.amax(1, keepdim=True)
            rows = rows.masked_fill(rows < least, 0)
        rows = rows.log()
    token, _, status = sample(
        rows,
        _uniforms(batch, 1, SAMPLE_STREAM, device, generator, seed, offset)[:, 0].contiguous(),
        top_k=_per_row("top_k", top_k, batch, torch.int32, device),
        top_p=_per_row("top_p", top_p, batch, torch.float32, device),
    )
    return token.to(dtype), status == 0


def _draw_from_probs(probs: Tensor, return_valid: bool, *args: Any, **filters: Any) -> Tensor | tuple[Tensor, Tensor]:
    token, valid = _draw(probs, True, *args, **filters)
    return (token, valid) if return_valid else token


def sampling_from_logits(
    logits: Tensor,
    indices: Tensor | None = None,
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    check_nan: bool = False,
    seed: int | Tensor | None = None,
    offset: int | Tensor | None = None,
) -> Tensor:
    """Draw a token from each row of logits `[B, V]`, or from the rows that `indices` names."""
    return _draw(logits, False, indices, generator, check_nan, seed, offset)[0]


def sampling_from_probs(
    probs: Tensor,
    indices: Tensor | None = None,
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    check_nan: bool = False,
    seed: int | Tensor | None = None,
    offset: int | Tensor | None = None,
    return_valid: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Draw a token from each row of probabilities `[B, V]`; `valid` where a row has a distribution."""
    return _draw_from_probs(probs, return_valid, indices, generator, check_nan, seed, offset)


def top_k_top_p_sampling_from_logits(
    logits: Tensor,
    top_k: int | Tensor,
    top_p: float | Tensor,
    indices: Tensor | None = None,
    filter_apply_order: str = "top_k_first",
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    check_nan: bool = False,
    seed: int | Tensor | None = None,
    offset: int | Tensor | None = None,
) -> Tensor:
    """Draw a token from each row of logits `[B, V]` after top-k and top-p.

    "top_k_first" takes top-p of what top-k left, renormalised; "joint" the tokens in both sets of the whole
    distribution.
    """
    return _draw(
        logits, False, indices, generator, check_nan, seed, offset, top_k, top_p, filter_apply_order=filter_apply_order
    )[0]


def top_k_sampling_from_probs(
    probs: Tensor,
    top_k: int | Tensor,
    indices: Tensor | None = None,
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    check_nan: bool = False,
    seed: int | Tensor | None = None,
    offset: int | Tensor | None = None,
    return_valid: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Draw a token from each row of probabilities `[B, V]` cut to its `top_k` best."""
    return _draw_from_probs(probs, return_valid, indices, generator, check_nan, seed, offset, top_k=top_k)


def top_p_sampling_from_probs(
    probs: Tensor,
    top_p: float | Tensor,
    indices: Tensor | None = None,
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    check_nan: bool = False,
    seed: int | Tensor | None = None,
    offset: int | Tensor | None = None,
    return_valid: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Draw a token from each row of probabilities `[B, V]` cut to its smallest set of mass `top_p`."""
    return _draw_from_probs(probs, return_valid, indices, generator, check_nan, seed, offset, top_p=top_p)


def min_p_sampling_from_probs(
    probs: Tensor,
    min_p: float | Tensor,
    indices: Tensor | None = None,
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    check_nan: bool = False,
    seed: int | Tensor | None = None,
    offset: int | Tensor | None = None,
    return_valid: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Draw a token from each row of probabilities `[B, V]` cut to what has `min_p` of the largest."""
    return _draw_from_probs(probs, return_valid, indices, generator, check_nan, seed, offset, min_p=min_p)


def top_k_top_p_sampling_from_probs(
    probs: Tensor,
    top_k: int | Tensor,
    top_p: float | Tensor,
    indices: Tensor | None = None,
    filter_apply_order: str = "top_k_first",
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    check_nan: bool = False,
    seed: int | Tensor | None = None,
    offset: int | Tensor | None = None,
    return_valid: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """`top_k_top_p_sampling_from_logits` for rows of probabilities `[B, V]`."""
    options = {"top_k": top_k, "top_p": top_p, "filter_apply_order": filter_apply_order}
    return _draw_from_probs(probs, return_valid, indices, generator, check_nan, seed, offset, **options)


def top_p_renorm_probs(probs: Tensor, top_p: float | Tensor, is_deterministic: bool = False) -> Tensor:
    """The distributions `[B, V]` cut to their smallest sets of mass `top_p`; tokens tied with the last are kept."""
    kept = _keep_top_p(probs.float(), top_p)
    return (kept / kept.sum(1, keepdim=True)).to(probs.dtype)


def top_k_renorm_probs(probs: Tensor, top_k: int | Tensor) -> Tensor:
    """The distributions `[B, V]` cut to their `top_k` best tokens; tokens tied with the last are kept."""
    kept = _keep_top_k(probs.float(), top_k)
    return (kept / kept.sum(1, keepdim=True)).to(probs.dtype)


def chain_speculative_sampling(
    draft_probs: Tensor,
    draft_token_ids: Tensor,
    target_probs: Tensor,
    maybe_output_accepted_token_num: Tensor | None = None,
    maybe_output_emitted_draft_token_num: Tensor | None = None,
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    seed: int | Tensor | None = None,
    offset: int | Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Rejection sampling along one chain of drafts a request.

    Args:
        draft_probs: float32 `[B, K, V]`, what each draft was drawn from.
        draft_token_ids: integers `[B, K]`.
        target_probs: float32 `[B, K + 1, V]`.
        maybe_output_accepted_token_num: int32 `[B]`; the drafts that pass when each is judged on its own are added.
        maybe_output_emitted_draft_token_num: int32 `[B]`; the drafts that are emitted are added.
        deterministic: always.
        generator, seed, offset: see above.

    Returns:
        int32 `[B, K + 1]`, the emitted drafts, one token more, then -1; and the two counters.
    """
    batch, drafts, vocabulary = draft_probs.shape
    nodes, device = drafts + 1, draft_probs.device
    tokens = torch.cat([torch.zeros_like(draft_token_ids[:, :1]), draft_token_ids], 1).long()  # the root is not read
    # Nothing is drafted after the last node: any row serves.
    draft_logits = torch.nn.functional.pad(draft_probs, (0, 0, 0, 1), value=1.0).log_()
    uniforms = _uniforms(batch, nodes, CHAIN_STREAM, device, generator, seed, offset)
    emitted, num_emitted, _, _ = verify_chain(
        target_probs.log().flatten(0, 1),
        tokens.flatten(),
        cu_nodes_of_equal(batch, nodes, device),
        uniforms,
        draft_logits=draft_logits.flatten(0, 1),
        max_nodes=nodes,
    )
    draft = tokens[:, 1:, None]
    in_vocabulary = (draft >= 0) & (draft < vocabulary)
    p, q = (x.gather(2, draft.clamp(0, vocabulary - 1)) for x in (target_probs[:, :drafts], draft_probs))
    passes = in_vocabulary & (uniforms[:, 1:, None] * q < p)
    counts = passes.sum((1, 2), dtype=torch.int32).maximum(num_emitted), num_emitted
    given = maybe_output_accepted_token_num, maybe_output_emitted_draft_token_num
    accepted_num, emitted_num = (
        count if total is None else total.add_(count) for total, count in zip(given, counts, strict=True)
    )
    return emitted.to(torch.int32), accepted_num, emitted_num


def merge_state(v_a: Tensor, s_a: Tensor, v_b: Tensor, s_b: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over two disjoint sets of keys: outputs `[N, H, D]` and base-2 log-sum-exps float32 `[N, H]`."""
    v, s = merge_attention(v_a, s_a.float() * math.log(2), v_b, s_b.float() * math.log(2))
    return v, s / math.log(2)


def merge_state_in_place(v: Tensor, s: Tensor, v_other: Tensor, s_other: Tensor, mask: Tensor | None = None) -> None:
    """`merge_state`, written to `v` and `s`; with a bool `mask [N]` in its rows alone."""
    for state, merged in zip((v, s), merge_state(v, s, v_other, s_other), strict=True):
        if mask is not None:
            merged = torch.where(mask.view(-1, *[1] * (state.ndim - 1)), merged, state)
        state.copy_(merged)


def merge_states(v: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """`merge_state` of many: outputs `[N, S, H, D]` and log-sum-exps `[N, S, H]`."""
    states = [(v_i.contiguous(), s_i.contiguous()) for v_i, s_i in zip(v.float().unbind(1), s.unbind(1), strict=True)]
    merged, lse = functools.reduce(lambda a, b: merge_state(*a, *b), states)
    return merged.to(v.dtype), lse.float()


def _into(buffer: Tensor | None, value: Tensor) -> Tensor:
    return value if buffer is None else buffer.copy_(value)


class BatchPrefillWithPagedKVCacheWrapper:
    """Verification through FlashInfer's paged prefill: `plan` with page tables in CSR and masks, then `run` a layer.

    The queries of a request are its candidates, the last `qo_len` of its `kv_len` tokens; all of them see the tokens
    before, whatever their mask says. `plan` reads the indptrs on the host, as FlashInfer's does; `run` reads nothing.
    Further arguments of FlashInfer's (`others`) may be given where they ask for nothing; else they raise a ValueError.
    """

    def __init__(self, float_workspace_buffer: Tensor | None = None, kv_layout: str = "NHD", **others: Any) -> None:
        check_not_served(others, WRAPPER_ARGUMENTS)
        if kv_layout not in ("NHD", "HND"):
            raise ValueError(f"kv_layout: expected NHD or HND, got {kv_layout}")
        self._kv_layout = kv_layout

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        head_dim_vo: int | None = None,
        custom_mask: Tensor | None = None,
        packed_custom_mask: Tensor | None = None,
        causal: bool = False,
        *,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        o_data_type: str | torch.dtype | None = None,
        **others: Any,
    ) -> None:
        """Translate the page tables and the mask.

        Args:
            qo_indptr: int32 `[B + 1]`, the candidates of each request.
            paged_kv_indptr, paged_kv_indices: int32 `[B + 1]`, and the pages of each request, one after another.
            paged_kv_last_page_len: int32 `[B]`.
            num_qo_heads, num_kv_heads, head_dim_vo: not used; the tensors given to `run` tell.
            head_dim_qk: for the default of `sm_scale`, `head_dim_qk ** -0.5`.
            page_size: tokens a page.
            custom_mask: bool, `[qo_len, kv_len]` a request, flat and one after another.
            packed_custom_mask: the same in bits, little-endian, each request's from a byte of its own on
                (FlashInfer's `segment_packbits`).
            causal: without a mask, whether a candidate sees only those before it.
            window_left: a key at most this many positions back is seen; -1 for all. Positions count depth in the tree.
            logits_soft_cap: bound of the scores.
            o_data_type: dtype of the output, or its name; must be that of the queries.
            others: see above.
        """
        check_not_served(others, PLAN_ARGUMENTS)
        self._out_dtype = getattr(torch, o_data_type) if isinstance(o_data_type, str) else o_data_type
        device, total = qo_indptr.device, int(qo_indptr[-1])
        qo_len, pages = qo_indptr.diff(), paged_kv_indptr.diff()
        page = torch.arange(int(pages.max()), device=device)
        entry = (paged_kv_indptr[:-1, None] + page).clamp(max=paged_kv_indices.numel() - 1)
        self._block_table = torch.where(page < pages[:, None], paged_kv_indices[entry], -1).int()
        kv_len = (pages - 1) * page_size + paged_kv_last_page_len
        self._context_lens, self._cu_nodes = (kv_len - qo_len).int(), qo_indptr.int()
        self._max_nodes = int(qo_len.max())
        self._scale = head_dim_qk**-0.5 if sm_scale is None else sm_scale
        self._window, self._softcap = window_left + 1, logits_soft_cap or 0.0
        self._mask = self._depth = None
        if custom_mask is None and packed_custom_mask is None and causal:
            return
        row = torch.arange(total, device=device)
        request = torch.searchsorted(qo_indptr[1:].contiguous(), row, right=True)
        other = torch.arange((self._max_nodes + 63) // 64 * 64, device=device)
        sees = other < qo_len[request, None]
        bits = (qo_len * kv_len).long()
        place = ((row - qo_indptr[request] + 1) * kv_len[request] - qo_len[request])[:, None] + other
        if packed_custom_mask is not None:
            size = (bits + 7) // 8
            place = (place + 8 * (size.cumsum(0) - size)[request, None]).clamp(max=8 * packed_custom_mask.numel() - 1)
            sees &= (packed_custom_mask[place // 8].int() >> (place % 8)) & 1 == 1
        elif custom_mask is not None:
            place = (place + (bits.cumsum(0) - bits)[request, None]).clamp(max=custom_mask.numel() - 1)
            sees &= custom_mask.flatten()[place].bool()
        else:  # the mask is no tree's, whose bits would tell the depth
            self._depth = (row - qo_indptr[request]).int()
        self._mask = pack_bits(sees)

    def run(
        self,
        q: Tensor,
        paged_kv_cache: Tensor | tuple[Tensor, Tensor],
        *,
        out: Tensor | None = None,
        lse: Tensor | None = None,
        return_lse: bool = False,
        window_left: int | None = None,
        sinks: Tensor | None = None,
        **others: Any,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attention of the candidates `q [N, H, D]` over the pages `[pages, 2, page_size, H_kv, D]`, or a pair of them.

        With `return_lse`, base-2 log-sum-exps float32 `[N, H]`, too. `out` and `lse` are written where they are given;
        `window_left` replaces the planned one.
        """
        check_not_served(others, RUN_ARGUMENTS)
        if self._out_dtype not in (None, q.dtype):
            raise ValueError(f"o_data_type: expected {q.dtype}, the dtype of q, got {self._out_dtype}")
        k_cache, v_cache = paged_kv_cache if isinstance(paged_kv_cache, tuple) else paged_kv_cache.unbind(1)
        if self._kv_layout == "HND":
            k_cache, v_cache = k_cache.transpose(1, 2), v_cache.transpose(1, 2)
        attended, log_sum = tree_attention(
            q,
            k_cache,
            v_cache,
            self._block_table,
            self._context_lens,
            self._cu_nodes,
            self._mask,
            scale=self._scale,
            softcap=self._softcap,
            window=self._window if window_left is None else window_left + 1,
            depth=self._depth,
            sinks=sinks,
            max_nodes=self._max_nodes,
        )
        out = _into(out, attended)
        return (out, _into(lse, log_sum / math.log(2))) if return_lse else out


class BatchDecodeWithPagedKVCacheWrapper:
    """FlashInfer's paged decode: the prefill above for one query a request, or a chain of `q_len_per_req`."""

    def __init__(self, float_workspace_buffer: Tensor | None = None, kv_layout: str = "NHD", **others: Any) -> None:
        self._prefill = BatchPrefillWithPagedKVCacheWrapper(float_workspace_buffer, kv_layout, **others)
        self.run = self._prefill.run

    def plan(
        self,
        indptr: Tensor,
        indices: Tensor,
        last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        *,
        q_len_per_req: int = 1,
        window_right: int = 0,
        **options: Any,
    ) -> None:
        """Translate the page tables; `options` are those of the prefill's `plan`.

        With `window_right=-1` the queries of a request see each other in both directions.
        """
        if window_right > 0 and q_len_per_req > 1:
            raise ValueError(f"window_right: expected 0 or -1, nothing else is served; got {window_right}")
        qo_indptr = cu_nodes_of_equal(last_page_len.shape[0], q_len_per_req, indptr.device)
        tables = (indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size)
        self._prefill.plan(qo_indptr, *tables, causal=window_right == 0, **options)
