"""Interleaved timing: ours, the peers and the floor in one loop, so that other load on the machine meets all alike."""

import itertools
import math
import random
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bench import machine

ROTATED_BYTES = 64 << 20  # inputs of a case, all sets together: beyond any L2, so that no run finds its input there
MAX_SETS = 64
BURST_S = 1e-3  # a run's turn: as many calls as fit in this time, one at least
MIN_ROUNDS, MAX_ROUNDS = 3, 100


def num_sets(bytes_per_set: int) -> int:
    """How many input sets of this size a case rotates over."""
    return min(MAX_SETS, math.ceil(ROTATED_BYTES / bytes_per_set))


@dataclass
class Case:
    """One row of a table. Every run takes the index of the input set to use."""

    runs: dict[str, Callable[[int], Any]]  # "ours", and what it is compared with
    sets: int
    floor_reads: Callable[[int], list[Tensor]]  # tensors of that input set with as many bytes as must be read at least
    floor_flops: float = 0.0  # arithmetic that must be done at least, in the operand type `floor_dtype`
    floor_dtype: torch.dtype = torch.float32
    partial: frozenset[str] = frozenset()  # runs that do less than the whole work: shown, but no peers
    skipped: dict[str, str] = field(default_factory=dict)  # run -> why it is missing
    facts: dict[str, Any] = field(default_factory=dict)  # about the workload: accepted tokens and the like


def operator(name: str) -> Any:
    """The operator `torch.ops.specdec.<name>`, or the reason why it cannot run."""
    try:
        import specdec_ops  # noqa: F401
    except ImportError as error:
        return str(error)
    found = getattr(torch.ops.specdec, name, None)
    if found is None or not torch._C._dispatch_has_kernel_for_dispatch_key(f"specdec::{name}", "CPU"):
        return f"specdec::{name} has no CPU kernel in this build"
    return found


def preemptions() -> int:
    """How often the system took a core from one of this process's threads."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def summary(samples: list[tuple[float, bool]]) -> dict[str, float]:
    """Of the calls that kept their cores where there are enough of them (others may use this machine), else of all."""
    undisturbed = [seconds for seconds, kept_cores in samples if kept_cores]
    values = undisturbed if len(undisturbed) >= MIN_ROUNDS else [seconds for seconds, _ in samples]
    times = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {**times, "undisturbed": len(undisturbed) / len(samples), "calls": len(samples)}


def measure(case: Case, seconds: float) -> dict[str, Any]:
    """Times every run of the case, for about `seconds` in all; the result goes into the report as it is."""
    runs = dict(case.runs)
    runs["read"] = lambda i: machine.read(case.floor_reads(i))
    gemm, gemm_flops = machine.gemm(case.floor_dtype)
    if case.floor_flops:
        runs["gemm"] = lambda i: gemm()

    # One counter for all runs: between two uses of a set every other set has been used.
    sets = itertools.cycle(range(case.sets))

    def burst(run: Callable[[int], Any], calls: int) -> list[tuple[float, bool]]:
        """Seconds of each call, and whether all our threads kept their cores during it and the call before."""
        stamps = [(time.perf_counter(), preemptions())]
        for _ in range(calls):
            run(next(sets))
            stamps.append((time.perf_counter(), preemptions()))
        before = [stamps[0], *stamps]
        turns = zip(before, stamps, stamps[1:], strict=False)
        return [(stop[0] - start[0], stop[1] == older[1]) for older, start, stop in turns]

    calls = {}
    for name, run in runs.items():
        burst(run, 1)  # warm-up
        calls[name] = math.ceil(BURST_S / min(burst(run, 3))[0])
    round_s = sum(max(BURST_S, burst(run, 1)[0][0]) for run in runs.values())
    rounds = min(MAX_ROUNDS, max(MIN_ROUNDS, round(seconds / round_s)))

    samples: dict[str, list[tuple[float, bool]]] = {name: [] for name in runs}
    order, shuffle = list(runs), random.Random(0).shuffle
    for _ in range(rounds):
        shuffle(order)  # nobody always follows the same neighbour, which leaves the caches as it likes
        for name in order:
            samples[name] += burst(runs[name], calls[name])

    times: dict[str, dict[str, float]] = {name: summary(values) for name, values in samples.items()}
    read, gemm_share = times.pop("read"), case.floor_flops / gemm_flops
    product = times.pop("gemm", dict.fromkeys(read, 0.0))
    times["floor"] = {**read, **{key: max(read[key], gemm_share * product[key]) for key in ("median", "min", "max")}}
    floor = {"bytes": sum(t.nbytes for t in case.floor_reads(0)), "flops": case.floor_flops, "read_s": read["median"]}
    clean = all(values["undisturbed"] * values["calls"] >= MIN_ROUNDS for values in times.values())
    details = {"clean": clean, "rounds": rounds, "sets": case.sets, "partial": sorted(case.partial)}
    return {"times_s": times, "floor": floor, "facts": case.facts, "skipped": case.skipped, **details}
