"""One step of the decode loop with one request: the models' forwards, and everything around them.

The parts of a step:

- `models`: inside the forwards of target and draft model, as their transformers modules see them;
- `outside`: the rest, from one chunk of the stream to the next, and of this
- `operators`: our operators, verification and sampling above all. On a CPU they work within the call, longer the larger
  the vocabulary; on an accelerator they are only launched;
- `host`: what then remains: Python, torch's small operators, launching;

and `compiled`, the same step as one graph of `torch.compile`, which has no parts.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from bench import timing

AXES = {"drafter": ["none", "lookup", "chain", "tree"], "vocab": [512, 32000, 128256], "temperature": [0.0, 0.8]}
QUICK = {"vocab": [512, 128256]}

IN_FORWARDS = {"specdec::kv_append", "specdec::tree_attention"}
WARM_UP, PROFILED, MEASURED = 5, 20, 300  # steps, of which each adds five tokens at most


def make_decoder(drafter: str, vocab: int, **options: Any) -> Any:
    """Of tiny models, whose time is not the matter here. The draft model is the target's twin: drafts are accepted."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from specdec_ops import drafters
    from specdec_ops.config import DecoderConfig
    from specdec_ops.decode import SpeculativeDecoder

    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    target, draft = (LlamaForCausalLM(LlamaConfig(vocab_size=vocab, **sizes)).eval() for _ in range(2))
    draft.load_state_dict(target.state_dict())
    make: dict[str, Callable[[], Any]] = {
        "none": lambda: None,
        "lookup": lambda: drafters.PromptLookup(4),
        "chain": lambda: drafters.DraftModel(draft, 4),
        "tree": lambda: drafters.DraftTree(draft, 8, topk=4, depth=4),
    }
    return SpeculativeDecoder(target, make[drafter](), DecoderConfig(max_num_seqs=1, max_model_len=2048, **options))


class Stopwatch:
    """Adds up the time inside modules' forwards, without hooks, which would make the calls around them longer."""

    def __init__(self, modules: list[torch.nn.Module]) -> None:
        self.seconds = 0.0
        for module in modules:
            module.forward = self._timed(module.forward)  # type: ignore[method-assign]

    def _timed(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            output = forward(*args, **kwargs)
            self.seconds += time.perf_counter() - start
            return output

        return timed


def operators_s(step: Callable[[], Any]) -> float:
    """Seconds a step in our operators outside the forwards: the median of each call, added up."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(PROFILED):
            step()
    calls = [event for event in profiler.events() if event.name.startswith("specdec::")]
    calls = sorted((call for call in calls if call.name not in IN_FORWARDS), key=lambda call: call.time_range.start)
    a_step = len(calls) // PROFILED
    if not a_step:
        raise RuntimeError("torch's profiler has seen none of our operators")
    return sum(statistics.median(c.time_range.elapsed_us() for c in calls[i::a_step]) for i in range(a_step)) * 1e-6


def steps_of(decoder: Any, temperature: float) -> Any:
    """The steps of one request, after the first few."""
    from specdec_ops.config import SamplingParams

    params = SamplingParams(temperature=temperature, seed=0, max_tokens=2000, ignore_eos=True)
    stream = decoder.stream([list(range(16))], params)
    for _ in range(WARM_UP):
        next(stream)
    return stream


def timed_steps(stream: Any, seconds: float) -> Iterator[tuple[float, bool]]:
    """Seconds of each step, and whether our threads kept their cores."""
    end = time.perf_counter() + seconds
    for i in range(MEASURED):
        if i >= timing.MIN_ROUNDS and time.perf_counter() > end:
            break
        taken, start = timing.preemptions(), time.perf_counter()
        next(stream)
        step = time.perf_counter() - start
        yield step, timing.preemptions() == taken
    stream.close()


def measure(seconds: float, drafter: str, vocab: int, temperature: float) -> dict[str, Any]:
    decoder = make_decoder(drafter, vocab)
    draft = getattr(decoder.drafter, "model", None)
    forwards = Stopwatch([decoder.target.model] if draft is None else [decoder.target.model, draft])
    stream = steps_of(decoder, temperature)
    operators = operators_s(lambda: next(stream))
    samples: dict[str, list[tuple[float, bool]]] = {"step": [], "models": [], "outside": []}
    forwards.seconds = 0.0
    for step, kept_cores in timed_steps(stream, seconds):
        for name, time_s in (("step", step), ("models", forwards.seconds), ("outside", step - forwards.seconds)):
            samples[name].append((time_s, kept_cores))
        forwards.seconds = 0.0
    times = {name: timing.summary(values) for name, values in samples.items()}
    times["operators"] = dict.fromkeys(("median", "min", "max"), operators)
    times["host"] = {key: times["outside"][key] - operators for key in ("median", "min", "max")}
    compiled = steps_of(make_decoder(drafter, vocab, compile=True), temperature)
    times["compiled"] = timing.summary(list(timed_steps(compiled, seconds)))
    clean = times["step"]["undisturbed"] * times["step"]["calls"] >= timing.MIN_ROUNDS
    facts = {"tokens a step": decoder.metrics.tokens_per_step}
    return {"times_s": times, "facts": facts, "skipped": {}, "partial": [], "clean": clean}
