"""Speed over the number of drafts a step, against plain decoding."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specdec_ops.config import SamplingParams
from specdec_ops.llm import LLM, Prompt
from specdec_ops.request import Metrics


@dataclass
class Row:
    k: int
    tokens_per_s: float  # median of the repeats, prefill not counted
    speedup: float  # median of the repeats' ratios to the plain decoding next to them
    acceptance: float | None  # accepted of all drafts; None: there were none
    acceptance_at: list[float]  # by position
    tokens_per_step: float


def timed(llm: LLM, prompts: Sequence[Prompt], params: SamplingParams) -> tuple[float, Metrics]:
    """Seconds that decoding took after the prefill, and what was counted."""
    llm.decoder.metrics = metrics = Metrics(llm.decoder.drafter.depth)
    start = time.perf_counter()
    llm.generate(prompts, params)
    return time.perf_counter() - start - metrics.seconds["prefill"], metrics


def sweep(llms: dict[int, LLM], prompts: Sequence[Prompt], params: SamplingParams, repeats: int) -> list[Row]:
    """Measures each of `llms`, by number of drafts (0, plain decoding, among them), in turn: what disturbs the machine
    for a while disturbs all of them."""
    for llm in llms.values():
        timed(llm, prompts, params)  # the first run sets up
    runs = [{k: timed(llm, prompts, params) for k, llm in llms.items()} for _ in range(repeats)]
    rates = [{k: metrics.emitted / seconds for k, (seconds, metrics) in run.items()} for run in runs]
    rows = []
    for k in llms:
        metrics = runs[0][k][1]
        rows.append(
            Row(
                k=k,
                tokens_per_s=statistics.median(rate[k] for rate in rates),
                speedup=statistics.median(rate[k] / rate[0] for rate in rates),
                acceptance=sum(metrics.accepted_at) / sum(metrics.drafted_at) if any(metrics.drafted_at) else None,
                acceptance_at=metrics.acceptance,
                tokens_per_step=metrics.tokens_per_step,
            )
        )
    return rows


def table(rows: Sequence[Row]) -> list[str]:
    lines = [f"{'K':>4}{'tokens/s':>11}{'tokens/step':>13}{'acceptance':>12}{'speed-up':>10}"]
    for row in rows:
        acceptance = "-" if row.acceptance is None else f"{row.acceptance:.2f}"
        lines.append(f"{row.k:4}{row.tokens_per_s:11.1f}{row.tokens_per_step:13.2f}{acceptance:>12}{row.speedup:10.2f}")
    return lines


def draw(rows: Sequence[Row], title: str, path: Path) -> None:
    """The table as a picture; needs matplotlib."""
    from matplotlib.figure import Figure

    drafting = [row for row in rows if row.k > 0]
    ks = [row.k for row in drafting]
    figure = Figure(figsize=(8, 3.5), layout="constrained")
    figure.suptitle(title)
    speed, acceptance = figure.subplots(1, 2)
    speed.plot(ks, [row.speedup for row in drafting], marker="o")
    speed.axhline(1, linestyle="--", color="grey")
    speed.set(xlabel="drafts a step (K)", ylabel="speed-up over plain decoding", xticks=ks)
    acceptance.plot(ks, [row.acceptance or 0.0 for row in drafting], marker="o")
    acceptance.set(xlabel="drafts a step (K)", ylabel="accepted drafts", ylim=(0, 1), xticks=ks)
    figure.savefig(path, format="png", dpi=150)
