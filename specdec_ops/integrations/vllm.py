"""Verification inside vLLM and vllm-ascend: a plugin that swaps our operators in where `SPECDEC_VLLM=1` is set.

vLLM's v1 runner hands over the drafts of all requests in one row, `cu_num_draft_tokens` with the ends of the requests
(no leading 0), target logits for the drafts alone, already processed, and a token that is to follow if all drafts
pass. Its v2 runner hands over logits for root and drafts, which is the operators' own layout.
"""

import functools
import importlib
import inspect
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from specdec_ops.ops import philox_uniform, sample, verify_chain

UNIFORMS_STREAM = 2
RENAMED = {"target_logits_or_tuple": "target_logits"}  # vllm-ascend's name: vLLM's


def _requests_of(cu_num_tokens: Tensor, num_tokens: int) -> Tensor:
    """The request of each of the tokens, int64 `[num_tokens]`."""
    token = torch.arange(num_tokens, device=cu_num_tokens.device, dtype=cu_num_tokens.dtype)
    return torch.searchsorted(cu_num_tokens, token, right=True)


def expand_batch_to_tokens(
    x: Tensor, cu_num_tokens: Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> Tensor:
    """A value a request, `[B]`, given to each of its tokens, `[num_tokens]`, with one value replaced."""
    x = torch.where(x == replace_from, replace_to, x).to(x.dtype)
    return x[_requests_of(cu_num_tokens, num_tokens).clamp(max=x.shape[0] - 1)]


def _uniforms(num_draft_tokens: list[int], columns: int, generators: dict[int, torch.Generator], device: Any) -> Tensor:
    """Numbers in [0, 1), `[B, columns]`; a request with a generator takes as many as its own drafts need."""
    uniforms = torch.rand(len(num_draft_tokens), columns, device=device)
    for request, generator in generators.items():
        if num_draft_tokens[request] > 0:
            uniforms[request, : num_draft_tokens[request] + 1].uniform_(generator=generator)
    return uniforms


def sample_recovered_tokens(
    max_spec_len: int,
    num_draft_tokens: list[int],
    cu_num_draft_tokens: Tensor,
    draft_token_ids: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    sampling_metadata: Any,
    device: torch.device,
    use_fp64_gumbel: bool = False,
) -> Tensor:
    """For each draft, a token from what its rejection leaves of the target's distribution, `[num_tokens]`."""
    if draft_probs is None:
        drafts = draft_token_ids.long().view(-1, 1)
        left = target_probs.scatter(1, drafts.clamp(min=0), torch.where(drafts >= 0, 0, target_probs[:, :1]))
    else:
        left = (target_probs - draft_probs).clamp(min=0)
    left = torch.where(left.sum(-1, keepdim=True) > 0, left, target_probs)  # nothing left by rounding
    uniforms = _uniforms(num_draft_tokens, max_spec_len + 1, sampling_metadata.generators, device)
    request = _requests_of(cu_num_draft_tokens, draft_token_ids.shape[0])
    return sample(left.log(), uniforms[request, 0])[0].to(draft_token_ids.dtype).view_as(draft_token_ids)


def _min_p(sampling_metadata: Any, batch: int) -> Tensor | None:
    for processor in sampling_metadata.logitsprocs.argmax_invariant:
        if getattr(processor, "min_p_count", 0) > 0:
            return processor.min_p.flatten()[:batch].float()
    return None


def _temperature(sampling_metadata: Any, batch: int, device: torch.device) -> Tensor:
    """Of logits that are divided by theirs already: 1, or 0 for greedy requests, which have 0, in older versions -1."""
    if sampling_metadata.all_greedy:
        return torch.zeros(batch, device=device)
    return (sampling_metadata.temperature[:batch] > 0).float()


def _column_of(drafts: Tensor, columns: Tensor) -> Tensor:
    """The place of each draft `[num_tokens]` among its selected columns `[num_tokens, S]`: `S` if it is not there."""
    is_column = columns == drafts[:, None]
    column = torch.where(is_column.any(-1), is_column.int().argmax(-1), columns.shape[1])
    return torch.where(drafts >= 0, column, -1)


def _ids_of(emitted: Tensor, columns: Tensor, first_row: Tensor) -> Tensor:
    """The ids of emitted columns `[B, K + 1]`; a request's rows of `columns` begin at `first_row [B]`, -1 stays."""
    rows, width = columns.shape
    row = first_row[:, None] + torch.arange(emitted.shape[1], device=emitted.device)
    ids = columns[row.clamp(max=rows - 1), emitted.clamp(0, width - 1)]
    return torch.where(emitted >= 0, ids.long(), -1)


def rejection_sample(
    draft_token_ids: Tensor,
    num_draft_tokens: list[int],
    max_spec_len: int,
    cu_num_draft_tokens: Tensor,
    draft_probs: Tensor | None,
    target_logits: Tensor | tuple[Tensor, Tensor | None],
    bonus_token_ids: Tensor,
    sampling_metadata: Any,
    synthetic_mode: bool = False,
    synthetic_conditional_rates: Tensor | None = None,
    use_fp64_gumbel: bool = False,
    ori_target_logits: Tensor | None = None,
    *,
    rule: str = "rejection",
) -> Tensor:
    """vLLM's and vllm-ascend's `rejection_sample` (v1 runner).

    Unlike theirs it applies `min_p` to the target's distribution; vLLM applies it to the bonus token alone.

    Args:
        draft_token_ids: int32 `[num_tokens]`; -1 is never accepted.
        num_draft_tokens: drafts a request.
        max_spec_len: the most of them.
        cu_num_draft_tokens: int32 `[B]`, ends of the requests.
        draft_probs: float32 `[num_tokens, V]`; None: the drafts were chosen deterministically.
        target_logits: `[num_tokens, V]` after temperature, top-k and top-p; or (vllm-ascend) `[num_tokens, S]` with the
            vocabulary ids of these columns, int `[num_tokens, S]`.
        bonus_token_ids: `[B, 1]`, emitted where all drafts are accepted.
        sampling_metadata: vLLM's: `all_greedy`, `temperature`, `generators`, `logitsprocs` are read.
        synthetic_mode: must be off.
        synthetic_conditional_rates, use_fp64_gumbel, ori_target_logits: not used.
        rule: `rejection` or `block`.

    Returns:
        int32 `[B, max_spec_len + 1]`, padded with -1.
    """
    if synthetic_mode:
        raise ValueError("synthetic_mode: expected False, acceptance at given rates verifies nothing")
    logits, columns = target_logits if isinstance(target_logits, tuple) else (target_logits, None)
    num_tokens, width = logits.shape
    batch, device = len(num_draft_tokens), logits.device

    # A request's nodes are its root and its drafts. The last one's row holds the bonus token alone, in a column of its
    # own past the others. With selected columns, that one also stands for drafts that were not selected: their target
    # probability is 0, and the draft's probability of all that was not selected gathers there.
    request = _requests_of(cu_num_draft_tokens, num_tokens)
    node = torch.arange(num_tokens, device=device) + request
    starts = torch.nn.functional.pad(cu_num_draft_tokens, (1, 0))
    cu_nodes = starts + torch.arange(batch + 1, device=device)
    p = torch.full((num_tokens + batch, width + 1), -torch.inf, device=device)
    p[:, :width].index_copy_(0, node, logits.float())
    p[cu_nodes[1:] - 1, width] = 0
    drafts = draft_token_ids.long() if columns is None else _column_of(draft_token_ids, columns)
    tokens = torch.full((num_tokens + batch,), -1, device=device).index_copy_(0, node + 1, drafts)
    q = None
    if draft_probs is not None:
        q = torch.full_like(p, -torch.inf)
        if columns is None:
            q[:, : draft_probs.shape[1]].index_copy_(0, node, draft_probs.log())
        else:
            selected = draft_probs.gather(1, columns.long())
            others = (1 - selected.sum(-1, keepdim=True)).clamp(min=0)
            q.index_copy_(0, node, torch.cat([selected, others], 1).log())
    emitted, _, _, _ = verify_chain(
        p,
        tokens,
        cu_nodes.int(),
        _uniforms(num_draft_tokens, max_spec_len + 1, sampling_metadata.generators, device),
        draft_logits=q,
        temperature=_temperature(sampling_metadata, batch, device),
        min_p=_min_p(sampling_metadata, batch),
        rule=rule,
        max_nodes=max_spec_len + 1,
    )
    is_bonus = emitted == width
    if columns is not None:
        emitted = _ids_of(emitted, columns, starts[:-1])
    return torch.where(is_bonus, bonus_token_ids.view(-1, 1).long(), emitted).int()


def rejection_sample_v2(
    target_logits: Tensor,
    draft_logits: Tensor | None,
    draft_sampled: Tensor,
    cu_num_logits: Tensor,
    pos: Tensor,
    idx_mapping: Tensor,
    expanded_idx_mapping: Tensor,
    expanded_local_pos: Tensor,
    temperature: Tensor,
    seed: Tensor,
    num_speculative_steps: int,
    synthetic_conditional_rates: Tensor | None = None,
    use_fp64: bool = False,
    use_block_verification: bool = False,
    contexts: Tensor | None = None,
    watermarking: Tensor | None = None,
    watermarking_skip_mask: Tensor | None = None,
    watermark_key: int | None = None,
) -> tuple[Tensor, Tensor]:
    """vLLM's `rejection_sample` of the v2 runner.

    Random numbers are a function of the request's seed and the position of its root.

    Args:
        target_logits: `[num_logits, V]`, rows of root and drafts, after temperature and filters.
        draft_logits: `[states, num_speculative_steps, V_draft]` before temperature; None: deterministic drafts. Where
            `V_draft < V`, vLLM cuts the target's distribution to `V_draft` tokens; here it stays whole.
        draft_sampled: `[num_logits]`, the tokens of root and drafts; -1 is never accepted.
        cu_num_logits: int32 `[B + 1]`.
        pos: `[num_logits]`, positions.
        idx_mapping, expanded_idx_mapping: `[B]` and `[num_logits]`, the state of each request and row.
        expanded_local_pos: `[num_logits]`, 0 for a root.
        temperature, seed: `[states]`.
        num_speculative_steps: bound of the drafts a request.
        use_block_verification: rule `block`.
        use_fp64: not used.
        synthetic_conditional_rates, contexts, watermarking, watermarking_skip_mask, watermark_key: must be None.

    Returns:
        int64 `[B, num_speculative_steps + 1]` tokens, padded with -1, and int32 `[B]`, how many there are.
    """
    if synthetic_conditional_rates is not None or contexts is not None:
        raise ValueError(
            "synthetic_conditional_rates, contexts: expected None; neither rates nor watermarks are served"
        )
    state = idx_mapping.long()
    temperature = temperature[state].float()
    if draft_logits is not None:
        step = expanded_local_pos.long().clamp(max=num_speculative_steps - 1)
        draft_logits = draft_logits[expanded_idx_mapping.long(), step]
        missing = target_logits.shape[1] - draft_logits.shape[1]
        if missing:  # the draft model knows fewer tokens; or (< 0) more, which are cut and count as no draft
            draft_logits = torch.nn.functional.pad(draft_logits, (0, missing), value=-torch.inf)
    cu_nodes = cu_num_logits.int()
    root_position = pos[cu_nodes[:-1].long()].long()
    columns = num_speculative_steps + 1
    sampled, num_accepted, _, _ = verify_chain(
        target_logits,
        draft_sampled.long(),
        cu_nodes,
        philox_uniform(seed[state].long(), root_position, columns, UNIFORMS_STREAM),
        draft_logits=draft_logits,
        draft_temperature=temperature,
        temperature=(temperature > 0).float(),  # the target's logits are divided by it already
        rule="block" if use_block_verification else "rejection",
        max_nodes=columns,
    )
    return sampled, num_accepted + 1


def _swap_when_built(sampler_class: type, method: str, swap: Callable[[Any], None]) -> None:
    """Have `swap(module)` run whenever a sampler is built, on the module that `method` looks names up in.

    That is after every patch that vllm-ascend applies when its worker starts, and follows it into the module of its own
    subclass.
    """
    original = sampler_class.__init__  # type: ignore[misc]
    if hasattr(original, "__wrapped__"):
        return  # plugins may be loaded more than once

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        swap(sys.modules[getattr(type(self), method).__module__])

    sampler_class.__init__ = init  # type: ignore[misc]


def _arguments(theirs: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., dict[str, Any]] | None:
    """How the arguments of a call of theirs are named here; None, and a warning, where some are not known here."""
    signature, known = inspect.signature(theirs), inspect.signature(ours).parameters
    names = {name: RENAMED.get(name, name) for name in signature.parameters}
    unknown = sorted(set(names.values()) - set(known))
    if unknown:
        warnings.warn(
            f"specdec_ops: {theirs.__module__}.rejection_sample has arguments not known here ({', '.join(unknown)}); "
            "it is left as it is",
            stacklevel=2,
        )
        return None

    def named(*args: Any, **kwargs: Any) -> dict[str, Any]:
        return {names[name]: value for name, value in signature.bind(*args, **kwargs).arguments.items()}

    return named


def _swap_v1(module: Any) -> None:
    theirs = getattr(module.rejection_sample, "theirs", module.rejection_sample)
    arguments = _arguments(theirs, rejection_sample)
    if arguments is None:
        return
    rule, logits_may_be_shards = "rejection", False
    if module.__name__.startswith("vllm_ascend"):
        config = importlib.import_module("vllm_ascend.ascend_config").get_ascend_config()
        if config.rejection_sampler_config.enable_entropy_verify:
            return  # a lossy rule of theirs
        rule = "block" if config.rejection_sampler_config.enable_block_verify else rule
        logits_may_be_shards = config.enable_reduce_sample

    def verify(*args: Any, **kwargs: Any) -> Tensor:
        given = arguments(*args, **kwargs)
        logits = given["target_logits"]
        has_columns = isinstance(logits, tuple) and logits[1] is not None
        if given.get("synthetic_mode") or (logits_may_be_shards and not has_columns):
            return theirs(*args, **kwargs)
        return rejection_sample(**given, rule=rule)

    verify.theirs = theirs  # type: ignore[attr-defined]
    module.rejection_sample = verify
    module.expand_batch_to_tokens = expand_batch_to_tokens
    if not module.__name__.startswith("vllm_ascend"):  # theirs takes selected columns, too
        module.sample_recovered_tokens = sample_recovered_tokens


def _swap_v2(module: Any) -> None:
    theirs = getattr(module.rejection_sample, "theirs", module.rejection_sample)
    arguments = _arguments(theirs, rejection_sample_v2)
    if arguments is None:
        return

    def verify(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        given = arguments(*args, **kwargs)
        if given.get("synthetic_conditional_rates") is not None or given.get("contexts") is not None:
            return theirs(*args, **kwargs)
        return rejection_sample_v2(**given)

    verify.theirs = theirs  # type: ignore[attr-defined]
    module.rejection_sample = verify


def register() -> None:
    """The `vllm.general_plugins` entry point: nothing happens unless the environment says `SPECDEC_VLLM=1`."""
    if os.environ.get("SPECDEC_VLLM", "0") != "1":
        return
    for name, method, swap in (
        ("vllm.v1.sample.rejection_sampler", "forward", _swap_v1),
        ("vllm.v1.worker.gpu.spec_decode.rejection_sampler", "_verify", _swap_v2),
    ):
        try:
            sampler_class = importlib.import_module(name).RejectionSampler
        except ImportError:
            continue  # this version has no such runner
        _swap_when_built(sampler_class, method, swap)
