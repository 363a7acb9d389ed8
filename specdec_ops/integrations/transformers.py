"""Transformers models (4.57 to 5.x): their attention through `tree_attention`, and generation by our decode loop.

`AttentionInterface` lets a function take the place of a model's attention. Two are registered:

- "specdec" is for any use of a model: it attends to the keys and values of transformers' own cache.
- "specdec_paged" is the decode loop's. It has no mask function, so that transformers builds no mask at all. The paged
  state travels to it as a keyword argument of the model, positions are given explicitly, and no transformers cache is
  involved.
"""

import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, GenerationConfig, PreTrainedModel

from specdec_ops import ops
from specdec_ops.cache import Nodes, PagedCache, PagePool
from specdec_ops.config import DecoderConfig, SamplingParams
from specdec_ops.decode import SpeculativeDecoder
from specdec_ops.drafters import Drafter, DraftModel, DraftTree
from specdec_ops.integrations import cu_nodes_of_equal
from specdec_ops.request import Chunk, Request

LAYER_TYPES = {"full_attention", "sliding_attention"}


def score_terms(
    query: Tensor,
    scaling: float | None = None,
    softcap: float | None = None,
    sliding_window: int | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[float, float, int, Tensor | None]:
    """Scale, softcap, window and sinks as `tree_attention` takes them, of what transformers gives an attention."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return scale, softcap or 0.0, sliding_window or 0, None if s_aux is None else s_aux.float()


def key_mask(
    batch_size: int,
    kv_length: int,
    kv_offset: int = 0,
    q_length: int = 0,
    q_offset: int | Tensor = 0,
    cache_position: Tensor | None = None,
    attention_mask: Tensor | None = None,
    allow_is_causal_skip: bool = True,
    config: Any = None,
    **kwargs: Any,
) -> Tensor | None:
    """Which keys are tokens and not padding, bool `[batch_size, kv_length]`; None: all of them.

    Positions come from `q_offset` and `q_length`, or `cache_position` in transformers 4.57. That the mask is other than
    causal or a sliding window shows in `allow_is_causal_skip`, but for layers of other types.
    """
    end = q_offset + q_length if cache_position is None else int(cache_position[-1]) + 1
    others = set(getattr(config, "layer_types", None) or ()) - LAYER_TYPES
    if others or not allow_is_causal_skip or end != kv_offset + kv_length:
        raise ValueError(
            "attention 'specdec' serves causal and sliding-window masks over a dynamic cache, one sequence a row; for "
            "other masks or caches call model.set_attn_implementation('sdpa')"
        )
    return None if attention_mask is None else attention_mask[:, -kv_length:]


def attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    **terms: Any,
) -> tuple[Tensor, None]:
    """New tokens `[B, heads, T, size]`, the last of the keys and values `[B, heads, S, size]`, attend causally.

    `attention_mask` is that of `key_mask`. A page holds one token, so that the block table leaves padding out.
    """
    if not getattr(module, "is_causal", True) or (attention_mask is not None and attention_mask.ndim != 2):
        raise ValueError(
            f"attention 'specdec' is causal, with attention_mask [B, S]; for {type(module).__name__} as it is called "
            "here use 'sdpa'"
        )
    scale, softcap, window, sinks = score_terms(query, **terms)
    (batch, _, new, _), total = query.shape, key.shape[2]
    pages = torch.arange(batch * total, dtype=torch.int32, device=query.device).view(batch, total)
    if attention_mask is not None:
        pages = torch.where(attention_mask, pages, -1)
    query, key, value = (x.transpose(1, 2).flatten(0, 1) for x in (query, key, value))
    out, _ = ops.tree_attention(
        query, key[:, None], value[:, None], pages,
        torch.full((batch,), total - new, dtype=torch.int32, device=query.device),
        cu_nodes_of_equal(batch, new, query.device),
        scale=scale, softcap=softcap, window=window, sinks=sinks, max_nodes=new,
    )  # fmt: skip
    return out.unflatten(0, (batch, new)), None


def paged_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    *,
    specdec: tuple[PagedCache, Nodes] | None = None,
    **terms: Any,
) -> tuple[Tensor, None]:
    """Puts the keys and values `[1, heads, N, size]` of the nodes into the cache and attends to it."""
    if specdec is None:
        raise RuntimeError(
            "this model's attention reads the paged cache of specdec_ops; to use the model by itself again call "
            "model.set_attn_implementation('specdec') or ('sdpa')"
        )
    cache, nodes = specdec
    query, key, value = (x.transpose(1, 2).flatten(0, 1) for x in (query, key, value))
    index: int = module.layer_idx  # type: ignore[assignment]
    layer = cache.shared_layers.get(index, index)
    if layer == index:
        cache.append(layer, key, value, nodes)
    out = cache.attend(layer, query, nodes, *score_terms(query, **terms))
    return out[None], None


AttentionInterface.register("specdec", attention)
AttentionMaskInterface.register("specdec", key_mask)
AttentionInterface.register("specdec_paged", paged_attention)


def shared_layers(model: PreTrainedModel) -> dict[int, int]:
    """Layers that read an earlier one's cache (Gemma 3n), and which: the last of their type with keys of its own."""
    shared: dict[int, int] = {}
    last_of_type: dict[str, int] = {}
    for module in model.modules():
        if not hasattr(module, "is_kv_shared_layer"):
            continue
        index: int = module.layer_idx  # type: ignore[assignment]
        layer_type = model.config.get_text_config().layer_types[index]
        if module.is_kv_shared_layer:
            shared[index] = last_of_type[layer_type]
        else:
            last_of_type[layer_type] = index
    return shared


class PagedModel:
    """A causal language model and its paged cache: logits of any nodes of any requests in one forward."""

    def __init__(self, model: PreTrainedModel, pool: PagePool) -> None:
        check_model(model)
        model.set_attn_implementation("specdec_paged")
        self.model, self.cache = model, PagedCache(pool, shared_layers(model))
        config = model.config.get_text_config()
        self.vocab_size = config.vocab_size
        # Without rotary embedding, positions are rows of a table, and drafts behind a text of full length are past it.
        rotary = hasattr(config, "rope_parameters") or hasattr(config, "rope_scaling")
        self.last_position = None if rotary else config.max_position_embeddings - 1
        self._seen: dict[str, Tensor] = {}

    @property
    def hidden(self) -> Tensor:
        """What the output layer saw in the last forward, `[rows, hidden size]`, if it is kept."""
        return self._seen["hidden"]

    def keep_hidden(self, num_rows: int, expected_size: int) -> Tensor:
        """Keeps `hidden` from now on; returns zeros for that many rows of it."""
        seen, output = self._seen, self.model.get_output_embeddings()
        size = self.model.config.get_text_config().hidden_size
        if size != expected_size:
            raise ValueError(f"the drafter is made for a hidden size of {expected_size}, and the target has {size}")

        def keep(module: torch.nn.Module, inputs: tuple[Tensor, ...]) -> None:
            seen["hidden"] = inputs[0][0]

        weakref.finalize(self, output.register_forward_pre_hook(keep).remove)
        return output.weight.new_zeros(num_rows, size)

    def __call__(self, tokens: Tensor, positions: Tensor, nodes: Nodes, rows: Tensor | int = 0) -> Tensor:
        """Logits `[N, V]` after each of the tokens `[1, N]`; `rows` picks some (indices, or how many of the last)."""
        if self.last_position is not None:
            positions = positions.clamp(max=self.last_position)
        output = self.model(
            input_ids=tokens,
            position_ids=positions,
            specdec=(self.cache, nodes),
            use_cache=False,
            logits_to_keep=rows,
        )
        return output.logits[0]


def check_model(model: PreTrainedModel) -> None:
    """Raises ValueError, naming what to change, for a model that cannot run on the paged cache."""
    name, config = type(model).__name__, model.config.get_text_config()
    if model.config.is_encoder_decoder:
        raise ValueError(f"{name} is an encoder-decoder; only decoder-only models can be used")
    if not getattr(model, "_supports_attention_backend", False) or getattr(model, "_is_stateful", False):
        raise ValueError(
            f"the attention of {name} cannot be replaced (it does not use transformers' AttentionInterface, or keeps "
            "a recurrent state); use a model whose every layer is attention, such as Llama, Qwen, Mistral or Gemma"
        )
    others = set(getattr(config, "layer_types", None) or ()) - LAYER_TYPES
    if others:
        raise ValueError(f"{name} has layers of type {sorted(others)}; only full and sliding attention can be used")
    rope = rope_types(config)
    if "dynamic" in rope:
        raise ValueError(
            f"{name} uses RoPE type 'dynamic', whose frequencies depend on the longest sequence of the batch; "
            "set the configuration's RoPE type to another, such as 'yarn'"
        )
    if "longrope" in rope:
        warnings.warn(
            f"{name} uses RoPE type 'longrope': its frequencies switch with the longest sequence of the batch, so a "
            "request's text may depend on the others",
            stacklevel=3,
        )
    if model.training:
        raise ValueError(f"{name} is in training mode; call model.eval() first")


def rope_types(config: Any) -> set[str]:
    """Of all layer types; the parameters are `rope_scaling` in transformers 4 and `rope_parameters` in 5."""
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    groups = [parameters, *(group for group in parameters.values() if isinstance(group, dict))]
    return {group.get("rope_type", group.get("type", "default")) for group in groups}


def num_positions(model: PreTrainedModel) -> int | None:
    """How many positions the model has; None where it depends on a scaling of RoPE, or there is no limit."""
    config = model.config.get_text_config()
    scaled = rope_types(config) - {"default", "llama3", "longrope"}  # these count theirs in the configuration
    return None if scaled else getattr(config, "max_position_embeddings", None)


# What `SamplingParams` and the decoder do themselves; anything else would be lost and is refused.
PROCESSORS = {
    "TemperatureLogitsWarper",
    "TopKLogitsWarper",
    "TopPLogitsWarper",
    "MinPLogitsWarper",
    "MinLengthLogitsProcessor",
    "MinNewTokensLengthLogitsProcessor",
}
CRITERIA = {"MaxLengthCriteria", "EosTokenCriteria"}
# What `generate` hands over of its own accord; its cache is left alone.
MODEL_KWARGS = {
    "attention_mask",
    "position_ids",
    "cache",
    "past_key_values",
    "cache_position",
    "use_cache",
    "logits_to_keep",
}


def left_padding(input_ids: Tensor, mask: Tensor | None, positions: Tensor | None) -> Tensor:
    """How much of each row is padding, int64 `[B]`; raises ValueError where not all of it is on the left."""
    mask = torch.ones_like(input_ids) if mask is None else mask.long()
    if mask.shape != input_ids.shape:
        raise ValueError(
            f"attention_mask: expected {list(input_ids.shape)}, the shape of input_ids, got {list(mask.shape)}"
        )
    if bool((mask.diff(dim=1) < 0).any()):
        raise ValueError(
            "attention_mask: expected padding on the left of each prompt alone, got a 0 after a 1; set "
            "tokenizer.padding_side = 'left'"
        )
    padding = (mask == 0).sum(1)
    place = torch.arange(input_ids.shape[1], device=input_ids.device) - padding[:, None]
    if positions is not None and bool(((positions != place) & (place >= 0)).any()):
        raise ValueError("position_ids: expected 0, 1, ... from the first token that is not padding; leave them out")
    return padding


def _check_served(
    options: GenerationConfig, logits_processor: Any, stopping_criteria: Any, model_kwargs: dict[str, Any]
) -> None:
    refused = [type(x).__name__ for x in logits_processor if type(x).__name__ not in PROCESSORS]
    refused += [type(x).__name__ for x in stopping_criteria if type(x).__name__ not in CRITERIA]
    refused += ["beam search"] if (options.num_beams or 1) > 1 else []
    refused += ["return_dict_in_generate"] if options.return_dict_in_generate else []
    refused += [
        name for name, x in model_kwargs.items() if name not in MODEL_KWARGS and x is not None and x is not False
    ]
    if refused:
        raise ValueError(f"speculative_generate does not support {', '.join(refused)}; leave it out")


def _sampling_params(options: GenerationConfig, prompt_length: int) -> SamplingParams:
    eos = options.eos_token_id
    return SamplingParams(
        temperature=(1.0 if options.temperature is None else options.temperature) if options.do_sample else 0.0,
        top_k=options.top_k or 0,
        top_p=1.0 if options.top_p is None else options.top_p,
        min_p=options.min_p or 0.0,
        max_tokens=options.max_length - prompt_length,
        min_tokens=max((options.min_length or 0) - prompt_length, options.min_new_tokens or 0, 0),
        stop_token_ids=() if eos is None else tuple(torch.as_tensor(eos).flatten().tolist()),
        ignore_eos=True,
    )


def speculative_generate(
    model: PreTrainedModel,
    input_ids: Tensor,
    logits_processor: Any = (),
    stopping_criteria: Any = (),
    generation_config: Any = None,
    drafter: Drafter | None = None,
    rule: str | None = None,
    on_tokens: Callable[[Chunk], None] | None = None,
    **model_kwargs: Any,
) -> Tensor:
    """For `model.generate(..., custom_generate=speculative_generate, drafter=PromptLookup(4))`.

    Besides `drafter`, takes the acceptance `rule` and `on_tokens`, called with each `Chunk` as it is accepted
    (transformers does not hand its own `streamer` to custom functions).

    Raises:
        ValueError: naming what of the arguments cannot be served.
    """
    options = generation_config
    _check_served(options, logits_processor, stopping_criteria, model_kwargs)
    positions = num_positions(model)
    if positions is not None and options.max_length > positions:
        raise ValueError(
            f"max_length={options.max_length}, which max_new_tokens may have set, is more than the model has positions "
            f"for, max_position_embeddings={positions}; lower it"
        )
    batch, width = input_ids.shape
    padding = left_padding(input_ids, model_kwargs.get("attention_mask"), model_kwargs.get("position_ids")).tolist()
    models = [model] + ([drafter.model] if isinstance(drafter, (DraftModel, DraftTree)) else [])
    before = [each.config._attn_implementation for each in models]
    try:
        decoder = SpeculativeDecoder(
            model, drafter, DecoderConfig(max_num_seqs=batch, max_model_len=options.max_length, rule=rule)
        )
        prompts = [row[skip:] for row, skip in zip(input_ids.tolist(), padding, strict=True)]
        requests: dict[int, Request] = {}
        for chunk in decoder.stream(prompts, _sampling_params(options, width)):
            requests[chunk.request.index] = chunk.request
            if on_tokens is not None:
                on_tokens(chunk)
    finally:
        for each, implementation in zip(models, before, strict=True):
            each.set_attn_implementation(implementation)
    rows = [torch.tensor(requests[index].tokens) for index in range(batch)]
    filler = 0 if options._pad_token_tensor is None else int(options._pad_token_tensor)
    new = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=filler)
    return torch.cat([input_ids, new.to(input_ids)], 1)
