"""What a user may choose, by the names that vLLM gave them."""

from dataclasses import dataclass, fields
from numbers import Integral
from typing import Any

CHAIN_RULES = ("rejection", "block", "strict", "typical")
TREE_RULES = ("target_only", "recursive", "traversal", "typical")
METHODS = ("draft_model", "medusa", "ngram")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def _require_integers(config: Any) -> None:
    """Of the fields that are declared as integers; numpy's pass, too."""
    for field in fields(config):
        value = getattr(config, field.name)
        if field.type is int or (field.type == int | None and value is not None):
            _require(isinstance(value, Integral), f"{field.name} must be an integer, got {value!r}")


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of one request are chosen.

    Of vLLM's parameters of the same name these are served and no others: not `n`, penalties, `logit_bias`, `bad_words`,
    allowed tokens, structured outputs, nor `prompt_logprobs`.

    Args:
        temperature: 0 is greedy.
        top_k: keep this many likeliest tokens; 0 or -1 keeps all.
        top_p: keep the likeliest tokens that make up this probability.
        min_p: keep tokens at least this likely relative to the likeliest.
        seed: same seed, same text, whatever else is in the batch; None takes a random one.
        max_tokens: stop after this many.
        min_tokens: no end-of-sequence or stop token before this many, and no stop string that they complete.
        stop_token_ids: stop after one of these, besides the model's own end-of-sequence tokens.
        stop: a string or several that end the text where the first of them begins (`LLM` only).
        include_stop_str_in_output: end the text behind the string instead.
        ignore_eos: do not stop at the model's end-of-sequence tokens.
        logprobs: return the log-probability of every token, under the processed distribution that it was chosen from;
            a bool, for there are none of other tokens.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int = 16
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        object.__setattr__(self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ()))
        _require_integers(self)
        _require(
            all(isinstance(stop, str) and stop for stop in self.stop),
            f"stop must be strings that are not empty, got {self.stop}",
        )
        _require(
            all(isinstance(token, Integral) for token in self.stop_token_ids),
            f"stop_token_ids must be integers, got {self.stop_token_ids}",
        )
        _require(self.temperature >= 0, f"temperature must be 0 (greedy) or more, got {self.temperature}")
        _require(self.top_k >= -1, f"top_k must be -1 or 0 (off) or more, got {self.top_k}")
        _require(0 < self.top_p <= 1, f"top_p must be above 0 and at most 1 (off), got {self.top_p}")
        _require(0 <= self.min_p <= 1, f"min_p must be from 0 (off) to 1, got {self.min_p}")
        _require(self.max_tokens >= 1, f"max_tokens must be 1 or more, got {self.max_tokens}")
        _require(
            0 <= self.min_tokens <= self.max_tokens,
            f"min_tokens must be from 0 to max_tokens ({self.max_tokens}), got {self.min_tokens}",
        )
        _require(isinstance(self.logprobs, bool), f"logprobs must be True or False, got {self.logprobs!r}")
        _require(self.seed is None or -(2**63) <= self.seed < 2**63, f"seed must fit into 64 bits, got {self.seed}")


@dataclass(frozen=True)
class DecoderConfig:
    """Shapes and rules of a `SpeculativeDecoder`; all of them are fixed for its life.

    Args:
        max_num_seqs: requests decoded at a time; more wait for a free slot.
        max_model_len: longest prompt and output of a request together; None is 2048, or as many as the target has
            positions for, where those are fewer.
        block_size: tokens a page of the KV cache.
        num_blocks: pages of the KV cache; None makes enough for `max_num_seqs` requests of `max_model_len`.
        rule: how drafts are accepted (`verify_chain`, `verify_tree`); None is "rejection" for chains and
            "target_only" for trees, both lossless.
        adaptive: shorten a chain of drafts where few of them are accepted.
        compile: run the step as one graph of `torch.compile`, made of the models as they are at the first step.
        measure: time the parts of each step, at the cost of waiting for the device between them.
    """

    max_num_seqs: int = 8
    max_model_len: int | None = None
    block_size: int = 16
    num_blocks: int | None = None
    rule: str | None = None
    adaptive: bool = False
    compile: bool = False
    measure: bool = False

    def __post_init__(self) -> None:
        _require_integers(self)
        for name in ("max_num_seqs", "max_model_len", "block_size", "num_blocks"):
            value = getattr(self, name)
            _require(value is None or value >= 1, f"{name} must be 1 or more, got {value}")
        _require(
            not (self.compile and self.measure), "compile and measure exclude each other: a compiled step has no parts"
        )
        rules = tuple(dict.fromkeys(CHAIN_RULES + TREE_RULES))
        _require(self.rule is None or self.rule in rules, f"unknown rule {self.rule!r}; choose one of {rules}")


@dataclass(frozen=True)
class SpeculativeConfig:
    """Where the drafts come from. Exactly one source: `draft_model`, `medusa`, or prompt lookup (`method="ngram"`).

    Args:
        num_speculative_tokens: drafts a step.
        method: "draft_model", "medusa" or "ngram"; None reads it off the other arguments.
        draft_model: a transformers model or the folder of one, with the target's tokenizer.
        draft_temperature: of the draft model's own sampling; None takes each request's temperature.
        tree_topk, tree_depth: with a draft model, draft a tree (EAGLE-2): this many children a node and this many
            levels, of which the best `num_speculative_tokens` nodes are kept.
        medusa: the safetensors file of trained Medusa heads.
        prompt_lookup_min, prompt_lookup_max: lengths of the n-grams that prompt lookup searches for.
        rule, adaptive: as in `DecoderConfig`.
    """

    num_speculative_tokens: int
    method: str | None = None
    draft_model: Any = None
    draft_temperature: float | None = None
    tree_topk: int | None = None
    tree_depth: int | None = None
    medusa: str | None = None
    prompt_lookup_min: int = 1
    prompt_lookup_max: int = 3
    rule: str | None = None
    adaptive: bool = False

    def __post_init__(self) -> None:
        _require_integers(self)
        _require(
            self.num_speculative_tokens >= 1,
            f"num_speculative_tokens must be 1 or more, got {self.num_speculative_tokens}; for plain decoding pass no "
            "speculative_config",
        )
        _require(
            self.draft_model is None or self.medusa is None,
            "draft_model and medusa exclude each other: give one of them",
        )
        source = "draft_model" if self.draft_model is not None else "medusa" if self.medusa is not None else "ngram"
        method = self.method or source
        _require(method in METHODS, f"unknown method {method!r}; choose one of {METHODS}")
        _require(
            method == source,
            f"method {method!r} needs the argument {method}"
            if method != "ngram"
            else f"method 'ngram' and {source} exclude each other: give one of them",
        )
        object.__setattr__(self, "method", method)
        _require(
            (self.tree_topk is None) == (self.tree_depth is None), "tree_topk and tree_depth go together: give both"
        )
        _require(
            self.draft_temperature is None or (method == "draft_model" and self.tree_topk is None),
            "draft_temperature is for chains of a draft model: nothing else samples its drafts",
        )
        if self.tree_topk is not None and self.tree_depth is not None:
            _require(method == "draft_model", f"tree_topk and tree_depth need a draft model, not method {method!r}")
            most = self.tree_topk + (self.tree_depth - 1) * self.tree_topk**2
            _require(
                self.tree_topk >= 1 and self.tree_depth >= 1 and self.num_speculative_tokens <= most,
                f"a tree of tree_topk={self.tree_topk} and tree_depth={self.tree_depth} has {most} drafts; "
                f"num_speculative_tokens={self.num_speculative_tokens} cannot be chosen from them",
            )
        _require(
            1 <= self.prompt_lookup_min <= self.prompt_lookup_max,
            f"expected 1 <= prompt_lookup_min <= prompt_lookup_max, got {self.prompt_lookup_min} and "
            f"{self.prompt_lookup_max}",
        )
