"""What a model and its draft take, and whether speculation would pay: from configurations, without weights."""

import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from specdec_ops.cache import Nodes, PagePool
from specdec_ops.config import SamplingParams
from specdec_ops.llm import LLM, check_shards, default_device, model_source


class Footprint(NamedTuple):
    """Bytes are those of each device."""

    name: str
    parameters: int  # of the whole model
    dtype: torch.dtype
    weight_bytes: int
    kv_bytes: int  # a token, all layers


def footprint(path: str, devices: int = 1, dtype: str = "auto") -> Footprint:
    """Sizes of the model whose configuration (or GGUF file) is at `path`, shared by that many devices.

    The model runs once on tensors without data, so that the cache's size is the one the decode loop will find.
    """
    from torch._subclasses import FakeTensorMode
    from transformers import AutoConfig, AutoModelForCausalLM

    from specdec_ops.integrations.transformers import PagedModel

    config = AutoConfig.from_pretrained(**model_source(path))
    check_shards(path, config, devices)
    options = {} if dtype == "auto" else {"dtype": getattr(torch, dtype)}
    with FakeTensorMode():
        model = AutoModelForCausalLM.from_config(config, **options).eval()
        paged = PagedModel(model, PagePool(1, 1, 1, 1, torch.device("cpu")))
        start = torch.zeros(1, dtype=torch.int32)
        nodes = Nodes(paged.cache.pool.block_table, start, torch.arange(2, dtype=torch.int32), max_nodes=1)
        with torch.no_grad():
            paged(start.long()[None], start.long()[None], nodes)
    plan = getattr(model, "_tp_plan", None) or {}
    # "layers.*.mlp.up_proj": "colwise"; what is neither split by columns nor by rows is on every device.
    split = [re.escape(name).replace(r"\*", r"\d+") for name, style in plan.items() if "wise" in style]
    is_split = re.compile(rf"(^|\.)({'|'.join(split)})\." if split else "$^")
    weights = sum(
        parameter.nbytes // (devices if is_split.search(name) else 1) for name, parameter in model.named_parameters()
    )
    return Footprint(
        name=type(model).__name__,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        dtype=model.dtype,
        weight_bytes=weights,
        kv_bytes=sum(tensor.nbytes for tensor in paged.cache.tensors) // devices,
    )


def device_memory() -> int:
    """Bytes of the accelerator, or of this machine if there is none."""
    device = default_device()
    if device.type == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return torch.get_device_module(device).mem_get_info()[1]


def expected_tokens(acceptance: float, k: int) -> float:
    """Tokens a step of `k` drafts yields, each accepted with that probability if those before it were.

    Source: Leviathan et al., "Fast inference from transformers via speculative decoding", 2211.17192, equation 1.
    """
    return sum(acceptance**i for i in range(k + 1))  # (1 - a^(K+1)) / (1 - a), also where a = 1


def break_even(cost: float, k: int) -> float | None:
    """The acceptance from which steps of `k` drafts that take `cost` plain steps pay; None if they never do."""
    low, high = 0.0, 1.0
    if expected_tokens(high, k) < cost:
        return None
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_tokens(middle, k) < cost else (low, middle)
    return high


class StepTimes(NamedTuple):
    """Seconds."""

    plain: float  # a step without drafts
    steps: dict[int, float]  # a step with that many drafts, drafting included

    def cost(self, k: int) -> float:
        return self.steps[k] / self.plain


def given_times(plain: float, verify: Sequence[float], draft: float, ks: Sequence[int]) -> StepTimes:
    """From the time of one draft, and one time of verification or one for each of `ks`."""
    if len(verify) not in (1, len(ks)):
        raise ValueError(f"expected one verification time, or {len(ks)}, one a number of drafts; got {len(verify)}")
    verify = list(verify) * (len(ks) // len(verify))
    return StepTimes(plain, {k: time + k * draft for k, time in zip(ks, verify, strict=True)})


MEASURED = 32  # tokens of the prompt, and of the output


def measured_times(llms: dict[int, LLM]) -> StepTimes:
    """From decoding with these, by their numbers of drafts (0 among them): one request with a random prompt."""
    from specdec_ops.sweep import timed

    generator = torch.Generator().manual_seed(0)
    vocab_size = llms[0].decoder.state.vocab_size
    prompt = torch.randint(vocab_size, (MEASURED,), generator=generator).tolist()
    params = SamplingParams(temperature=0.0, max_tokens=MEASURED, ignore_eos=True)
    seconds: dict[int, float] = {}
    for k, llm in llms.items():
        timed(llm, [prompt], params)  # the first run sets up
        time, metrics = timed(llm, [prompt], params)
        seconds[k] = time / metrics.steps
    return StepTimes(seconds.pop(0), seconds)


def size(num_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.4g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.4g} GiB"


def memory_report(target: Footprint, draft: Footprint | None, devices: int, memory: float, length: int) -> list[str]:
    """`memory`: bytes of each device that may be used; `length`: tokens of a request."""
    lines = []
    for role, model in {"target": target, "draft": draft}.items():
        if model is not None:
            lines.append(
                f"{role}: {model.name}, {model.parameters / 1e6:.1f} M parameters as {str(model.dtype)[6:]}, "
                f"{size(model.weight_bytes)} of weights and {size(model.kv_bytes)} of KV cache a token on each device"
            )
    models = [target] if draft is None else [target, draft]
    room = memory - sum(model.weight_bytes for model in models)
    where = f"{devices} device{'s' if devices > 1 else ''} with {size(memory)} each to use"
    if room < 0:
        return [*lines, f"{where}: the weights do not fit, {size(-room)} are missing on each"]
    tokens = int(room // sum(model.kv_bytes for model in models))
    lines.append(f"{where}: room for {size(room * devices)} of KV cache")
    lines.append(f"that is {tokens} tokens, {tokens // length} requests of {length}")
    return lines


def speed_report(ks: Sequence[int], acceptances: Sequence[float], times: StepTimes | None) -> list[str]:
    columns = "".join(f"{f'a={acceptance:g}':>9}" for acceptance in acceptances)

    def table(title: str, extra: str, cell: Any, before: Any = lambda k: "") -> list[str]:
        rows = ["".join(f"{cell(acceptance, k):9.2f}" for acceptance in acceptances) for k in ks]
        return [
            title,
            f"{'K':>4}{extra}{columns}",
            *(f"{k:4}{before(k)}{row}" for k, row in zip(ks, rows, strict=True)),
        ]

    lines = table(
        "tokens a step with a chain of K drafts, (1 - a^(K+1)) / (1 - a), each accepted with probability a",
        "",
        expected_tokens,
    )
    if times is None:
        return [
            *lines,
            "",
            "speculation pays where a step takes fewer plain steps than that; step times tell if it does",
        ]

    def speed_up(acceptance: float, k: int) -> float:
        return expected_tokens(acceptance, k) / times.cost(k)

    def cost(k: int) -> str:
        pays = break_even(times.cost(k), k)
        return f"{times.steps[k] * 1e3:10.3f}{times.cost(k):8.2f}{'never' if pays is None else f'a>{pays:.2f}':>9}"

    title = f"speed-up over plain decoding, whose step takes {times.plain * 1e3:.3f} ms"
    lines += ["", *table(title, f"{'step ms':>10}{'cost':>8}{'pays':>9}", speed_up, cost), ""]
    for acceptance in acceptances:
        best = max(ks, key=lambda k: speed_up(acceptance, k))
        gain = speed_up(acceptance, best)
        verdict = f"best with K={best}, {gain:.2f} times as fast"
        if gain <= 1:
            verdict = f"speculation will not pay: {gain:.2f} times as fast at best (K={best})"
        lines.append(f"a={acceptance:g}: {verdict}")
    return lines
