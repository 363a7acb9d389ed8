"""A request on the host: what was asked, what came out, and how it went."""

from dataclasses import dataclass, field
from typing import NamedTuple

from specdec_ops.config import SamplingParams


@dataclass(eq=False)
class Request:
    index: int
    prompt: list[int]
    params: SamplingParams
    stop_ids: list[int]  # end-of-sequence and stop tokens
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)  # of the tokens, if asked for
    finish_reason: str | None = None  # "stop" or "length"

    @property
    def max_len(self) -> int:
        return len(self.prompt) + self.params.max_tokens

    def extend(self, tokens: list[int], logprobs: list[float], finished: bool) -> None:
        self.tokens += tokens
        if self.params.logprobs:
            self.logprobs += logprobs
        if finished:
            self.finish_reason = "stop" if self.tokens[-1] in self.stop_ids else "length"

    def cut(self, length: int) -> None:
        """Ends the request after that many of its tokens."""
        del self.tokens[length:], self.logprobs[length:]
        self.finish_reason = "stop"


class Chunk(NamedTuple):
    """Tokens that one step added to one request."""

    request: Request
    tokens: list[int]
    logprobs: list[float]


class Metrics:
    """Counts over all requests, and where the time went.

    A draft counts as accepted if verification accepted it, as in vLLM's metrics: also where an end-of-sequence or stop
    token, or the length limit, then cuts it off. So acceptance tells how good the drafts are, and `emitted` what came
    of it; those behind a stop string count, too.
    """

    def __init__(self, depth: int) -> None:
        self.steps = 0  # of requests: a step of a batch counts once for each request in it
        self.emitted = 0
        self.drafted_at = [0] * depth  # steps that drafted a token at depth i + 1 ...
        self.accepted_at = [0] * depth  # ... and those that accepted it
        self.seconds = dict.fromkeys(("prefill", "draft", "verify", "rest"), 0.0)  # of steps if `measure` is on

    def count(self, emitted: int, drafted: int, accepted: int) -> None:
        self.steps += 1
        self.emitted += emitted
        for counts, reached in ((self.drafted_at, drafted), (self.accepted_at, accepted)):
            for i in range(reached):
                counts[i] += 1

    @property
    def tokens_per_step(self) -> float:
        return self.emitted / max(self.steps, 1)

    @property
    def acceptance(self) -> list[float]:
        """At depth i + 1: accepted drafts per draft."""
        return [accepted / max(drafted, 1) for accepted, drafted in zip(self.accepted_at, self.drafted_at, strict=True)]
