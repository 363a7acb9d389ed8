"""The familiar front: text in, text out."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

import torch

from specdec_ops.config import DecoderConfig, SamplingParams, SpeculativeConfig
from specdec_ops.decode import SpeculativeDecoder
from specdec_ops.drafters import Drafter, DraftModel, DraftTree, MedusaHeads, PromptLookup
from specdec_ops.request import Chunk, Metrics, Request

Prompt = str | Sequence[int]
Params = SamplingParams | Sequence[SamplingParams] | None


@dataclass
class RequestOutput:
    prompt: Prompt
    prompt_token_ids: list[int]
    text: str
    token_ids: list[int]
    logprobs: list[float]  # of the tokens, natural logarithms, if they were asked for
    finish_reason: str  # "stop", or "length" at `max_tokens`


class TextChunk(NamedTuple):
    prompt: int  # which of them
    text: str
    token_ids: list[int]


class LLM:
    """Loads models and decodes text with them.

    Args:
        model: a transformers model, the folder of one, or a GGUF file.
        tokenizer: a transformers tokenizer; None loads the one beside the model. Without one, prompts are token ids.
        speculative_config: where drafts come from; None decodes plainly. Or a dict of its fields, in which `model` may
            stand for `draft_model`, as in vLLM's.
        tensor_parallel_size: processes that share the model, started by `torchrun --nproc-per-node N`.
        dtype: of models that are loaded here.
        device: for models that are loaded here; None is the accelerator if there is one. Processes that share a model
            leave the choice to transformers: the accelerator, each its own, else the CPU.
        options: of `DecoderConfig`; `rule` and `adaptive` of `speculative_config` count before them.

    Raises:
        ValueError: an argument cannot be served; the message says what to change.
    """

    def __init__(
        self,
        model: Any,
        *,
        tokenizer: Any = None,
        speculative_config: SpeculativeConfig | Mapping[str, Any] | None = None,
        tensor_parallel_size: int = 1,
        dtype: str | torch.dtype = "auto",
        device: str | torch.device | None = None,
        **options: Any,
    ) -> None:
        if tensor_parallel_size != num_processes():
            raise ValueError(
                f"tensor_parallel_size={tensor_parallel_size}, and {num_processes()} processes run; start the program "
                f"with `torchrun --nproc-per-node {tensor_parallel_size}`"
            )
        loading: dict[str, Any] = {
            "dtype": dtype,
            "device": default_device() if device is None else device,
            "shards": num_processes(),
        }
        self.tokenizer = load_tokenizer(model) if tokenizer is None else tokenizer
        spec = make_speculative_config(speculative_config)
        if spec is not None and spec.draft_model is not None:
            check_same_tokenizer(self.tokenizer, load_tokenizer(spec.draft_model))
        if spec is not None:
            options |= {name: value for name in ("rule", "adaptive") if (value := getattr(spec, name))}
        config = DecoderConfig(**options)
        target = load_model(model, **loading)
        self.decoder = SpeculativeDecoder(target, None if spec is None else make_drafter(spec, target, loading), config)

    @property
    def metrics(self) -> Metrics:
        return self.decoder.metrics

    def generate(self, prompts: Prompt | Sequence[Prompt], sampling_params: Params = None) -> list[RequestOutput]:
        """Decodes prompts, texts or token ids, to their ends; arguments and errors as in `stream`."""
        prompts = self._listed(prompts)
        chunks, texts = self._start(prompts, sampling_params)
        requests = {}
        for request, tokens, _ in chunks:
            requests[request.index] = request
            if texts[request.index].params.stop:
                texts[request.index].extend(request, tokens)
        return [self._output(prompt, requests[i], texts[i]) for i, prompt in enumerate(prompts)]

    def stream(self, prompts: Prompt | Sequence[Prompt], sampling_params: Params = None) -> Iterator[TextChunk]:
        """Gives text as it is accepted, as far as it ends in whole characters and cannot begin a stop string.

        Args:
            prompts: one or several, texts or token ids; those beyond `max_num_seqs` wait for a slot.
            sampling_params: for all prompts, or one each; None is `SamplingParams()`.

        Raises:
            ValueError: at once, for a prompt or a parameter that cannot be served.
            RuntimeError: with the first chunk, while another stream is unfinished; or where the target's logits hold
                NaN or infinity.
        """
        return self._texts(*self._start(self._listed(prompts), sampling_params))

    def _start(self, prompts: list[Prompt], given: Params) -> tuple[Iterator[Chunk], list["TextStream"]]:
        params = self._params(given, len(prompts))
        if self.tokenizer is None and any(one.stop for one in params):
            raise ValueError("stop: expected no strings without a tokenizer; pass tokenizer=... or use stop_token_ids")
        chunks = self.decoder.stream(
            [self._encode(prompt) for prompt in prompts], [replace(p, stop=()) for p in params]
        )
        return chunks, [TextStream(self.tokenizer, one) for one in params]

    def _texts(self, chunks: Iterator[Chunk], texts: list["TextStream"]) -> Iterator[TextChunk]:
        for request, tokens, _ in chunks:
            before = len(request.tokens) - len(tokens)
            text = texts[request.index].extend(request, tokens)
            yield TextChunk(request.index, text, request.tokens[before:])

    def _listed(self, prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
        one = isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], Integral))
        return [prompts] if one else list(prompts)  # type: ignore[list-item, arg-type]

    def _encode(self, prompt: Prompt) -> list[int]:
        if not isinstance(prompt, str):
            return [int(token) for token in prompt]
        if self.tokenizer is None:
            raise ValueError("there is no tokenizer beside the model: pass tokenizer=... or prompts of token ids")
        return self.tokenizer(prompt)["input_ids"]

    def _params(self, given: Params, num_prompts: int) -> list[SamplingParams]:
        listed = list(given) if isinstance(given, Sequence) else [given or SamplingParams()] * num_prompts
        if num_processes() == 1:
            return listed
        # Processes that share a model must decide alike: the first draws the seeds that requests leave open.
        seeds = torch.randint(2**62, (len(listed),)).to(self.decoder.state.device)
        torch.distributed.broadcast(seeds, 0)
        pairs = zip(listed, seeds.tolist(), strict=True)
        return [replace(one, seed=seed) if one.seed is None else one for one, seed in pairs]

    def _output(self, prompt: Prompt, request: Request, stream: "TextStream") -> RequestOutput:
        text = stream.text if stream.params.stop else stream.decode(request.tokens)
        assert request.finish_reason is not None
        return RequestOutput(prompt, request.prompt, text, request.tokens, request.logprobs, request.finish_reason)


class TextStream:
    """A request's text, piece by piece. A stop string ends the text and the request."""

    def __init__(self, tokenizer: Any, params: SamplingParams) -> None:
        self.tokenizer, self.params = tokenizer, params
        self.tokens: list[int] = []
        self.start = self.decoded = 0  # tokens decoded for context, tokens whose text is known
        self.text, self.shown = "", 0  # what is known, and how much of it is out
        self.held = max(map(len, params.stop), default=1) - 1  # characters that may begin a stop string

    def extend(self, request: Request, tokens: list[int]) -> str:
        """Takes the latest tokens of the request; what may be shown now."""
        count = len(request.tokens) - len(tokens)
        # Token by token where a stop string may be among them, so that no token behind it counts.
        for piece in [[token] for token in tokens] if self.params.stop else [tokens]:
            count += len(piece)
            old = len(self.text)
            self.text += self._decoded(piece, last=request.finish_reason is not None and count == len(request.tokens))
            found = [(self.text.find(stop, max(old - len(stop) + 1, 0)), stop) for stop in self.params.stop]
            found = [(at, stop) for at, stop in found if at >= 0]
            if found and count > self.params.min_tokens:
                at, stop = min(found)
                self.text = self.text[: at + (len(stop) if self.params.include_stop_str_in_output else 0)]
                request.cut(count)
                break
        start = self.shown
        self.shown = max(start, len(self.text) - (self.held if request.finish_reason is None else 0))
        return self.text[start : self.shown]

    def _decoded(self, tokens: list[int], last: bool) -> str:
        """What further tokens add to the text; nothing yet where they end inside a character."""
        self.tokens += tokens
        before = self.decode(self.tokens[self.start : self.decoded])
        now = self.decode(self.tokens[self.start :])
        if now.endswith("\ufffd") and not last:
            return ""
        self.start, self.decoded = self.decoded, len(self.tokens)
        return now[len(before) :]

    def decode(self, tokens: list[int]) -> str:
        return "" if self.tokenizer is None else self.tokenizer.decode(tokens, skip_special_tokens=True)


def make_speculative_config(given: SpeculativeConfig | Mapping[str, Any] | None) -> SpeculativeConfig | None:
    if given is None or isinstance(given, SpeculativeConfig):
        return given
    if "model" in given and "draft_model" in given:
        raise ValueError("speculative_config: expected model or draft_model, which are the same, got both")
    options = {"draft_model" if name == "model" else name: value for name, value in given.items()}
    names = [field.name for field in fields(SpeculativeConfig)]
    unknown = [name for name in options if name not in names]
    if unknown:
        raise ValueError(f"speculative_config has no {', '.join(unknown)}; its fields are {', '.join(names)}")
    return SpeculativeConfig(**options)


def num_processes() -> int:
    """How many torchrun has started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def default_device() -> torch.device:
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return accelerator or torch.device("cpu")


def load_model(model: Any, dtype: str | torch.dtype, device: torch.device, shards: int) -> Any:
    if not isinstance(model, str | os.PathLike):
        return model
    from transformers import AutoConfig, AutoModelForCausalLM

    source = model_source(model)
    if shards == 1:
        return AutoModelForCausalLM.from_pretrained(**source, dtype=dtype).eval().to(device)
    check_shards(model, AutoConfig.from_pretrained(**source), shards)
    return AutoModelForCausalLM.from_pretrained(**source, dtype=dtype, **tensor_parallel_plan()).eval()


def check_shards(path: str | os.PathLike, config: Any, shards: int) -> None:
    """Raises ValueError for a model whose attention that many devices cannot share."""
    heads = getattr(config.get_text_config(), "num_key_value_heads", None)
    if heads is not None and heads % shards:
        raise ValueError(f"{path} has {heads} key and value heads, which {shards} devices cannot share evenly")


def tensor_parallel_plan() -> dict[str, Any]:
    """What `from_pretrained` wants to hear of it: transformers 5 has a configuration, 4 an argument."""
    try:
        from transformers.distributed import DistributedConfig

        return {"distributed_config": DistributedConfig(tp_plan="auto")}
    except (ImportError, TypeError):
        return {"tp_plan": "auto"}


def load_tokenizer(model: Any) -> Any:
    """The tokenizer beside a model, or None."""
    from transformers import AutoTokenizer

    folder = model if isinstance(model, str | os.PathLike) else getattr(model.config, "_name_or_path", "")
    if not folder or not Path(folder).exists():
        return None
    try:
        return AutoTokenizer.from_pretrained(**model_source(folder))
    except (OSError, ValueError):
        return None


def model_source(path: str | os.PathLike) -> dict[str, str]:
    """Arguments of transformers' `from_pretrained` functions."""
    path = Path(path)
    if not path.exists():
        raise ValueError(f"there is no model at {path}; give the folder of a transformers checkpoint or a GGUF file")
    if path.suffix == ".gguf":
        missing = [package for package in ("gguf", "accelerate") if find_spec(package) is None]
        if missing:
            raise ValueError(f"reading {path} needs {' and '.join(missing)}: pip install 'specdec_ops[gguf]'")
        return {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    return {"pretrained_model_name_or_path": str(path)}


def check_same_tokenizer(target: Any, draft: Any) -> None:
    """Raises ValueError if both are known and give ids different meanings."""
    if target is None or draft is None:
        return
    differing = set(target.get_vocab().items()) ^ set(draft.get_vocab().items())
    if differing:
        examples = ", ".join(repr(token) for token, _ in sorted(differing)[:3])
        raise ValueError(
            f"target and draft have different tokenizers: {len(differing)} entries differ, such as {examples}; use a "
            "draft model of the target's family"
        )


def make_drafter(spec: SpeculativeConfig, target: Any, loading: dict[str, Any]) -> Drafter:
    k = spec.num_speculative_tokens
    if spec.medusa is not None:
        parameter = next(target.parameters())
        return MedusaHeads(spec.medusa, num_draft=k, device=parameter.device, dtype=parameter.dtype)
    if spec.draft_model is None:
        return PromptLookup(k, spec.prompt_lookup_min, spec.prompt_lookup_max)
    draft = load_model(spec.draft_model, **loading)
    if spec.tree_topk is not None and spec.tree_depth is not None:
        return DraftTree(draft, k, spec.tree_topk, spec.tree_depth)
    return DraftModel(draft, k, spec.draft_temperature)
