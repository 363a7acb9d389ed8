"""What the Ascend C kernels cost on a modelled NPU: traffic, products and time, beside their floors.

The kernels run on the host simulator (`SPECDEC_SIM=1` builds it). Bytes and products are counted; times are a model
estimate, uncalibrated: use them to compare two versions of a kernel, and with the roofline of the same model.
"""

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench import inputs, rollback, tree, verify

LABEL = "model estimate, uncalibrated"
CUBE_MACS = 16**3  # a cycle and cube core, bfloat16
BLOCK, KV_HEADS, DIM = 128, 8, 128  # attention
PIPES = ("MTE2", "V", "MTE3", "S", "MTE1", "M", "FIX")


@dataclass
class Case:
    """One call. The floors may depend on what it returned."""

    run: Callable[[Any], Any]  # takes the namespace of the operators
    floor_bytes: Callable[[Any], int]  # read from and written to global memory at least
    floor_macs: int = 0


def nbytes(*tensors: Any) -> int:
    return sum(tensor.nbytes for tensor in tensors if isinstance(tensor, Tensor))


def once(name: str, *args: Any, **kwargs: Any) -> Case:
    """A call whose floor is every argument and every result once."""

    def floor(results: Any) -> int:
        outputs = results if isinstance(results, tuple) else (results,)
        return nbytes(*args, *kwargs.values(), *outputs)

    return Case(lambda operators: getattr(operators, name)(*args, **kwargs), floor)


def pages(batch: int, tokens: int) -> Tensor:
    per_request = -(-tokens // BLOCK)
    return torch.randperm(batch * per_request, dtype=torch.int32).view(batch, per_request)


def lengths(batch: int, value: int) -> Tensor:
    return torch.full((batch,), value, dtype=torch.int32)


def verify_chain(batch: int, drafts: int, vocab: int) -> Case:
    """rejection, with draft logits. Floor: the rows that the verdict needs once, a target and a draft row again."""
    x = verify.Inputs(torch.bfloat16, batch, drafts, vocab)

    def floor(results: Any) -> int:
        accepted = results[1].long()
        target, draft = (accepted + 1).sum(), (accepted + 1).clamp(max=drafts).sum()
        return int(target + draft + 2 * batch) * vocab * 2

    q = {"draft_logits": x.draft, "draft_temperature": x.temperature}
    return Case(
        lambda operators: operators.verify_chain(
            x.target, x.tokens, x.cu_nodes, x.uniforms, **q, temperature=x.temperature, max_nodes=drafts + 1
        ),
        floor,
    )


def verify_tree(batch: int, nodes: int, vocab: int) -> Case:
    """target_only. Floor: the rows on the path once, two rows again."""
    x = tree.Inputs(torch.bfloat16, batch, nodes, vocab)

    def floor(results: Any) -> int:
        num_accepted = results[0]
        return int(num_accepted.long().sum() + 3 * batch) * vocab * 2

    return Case(lambda operators: x.verify(operators.verify_tree, "target_only"), floor)


def sample(batch: int, vocab: int) -> Case:
    logits = inputs.target_logits(batch, vocab).bfloat16()
    filters = {
        "temperature": torch.full((batch,), 0.9),
        "top_k": lengths(batch, 50),
        "top_p": torch.full((batch,), 0.9),
    }
    return once("sample", logits, torch.rand(batch), **filters)


def tree_attention(batch: int, context: int, nodes: int, heads: int) -> Case:
    """Floor: the keys and values that are seen, once."""
    tokens = context + nodes
    table = pages(batch, tokens)
    caches = [torch.randn(table.numel(), BLOCK, KV_HEADS, DIM, dtype=torch.bfloat16) for _ in range(2)]
    q = torch.randn(batch * nodes, heads, DIM, dtype=torch.bfloat16)
    mask = inputs.pack_mask(inputs.ancestors(inputs.random_tree(nodes))).repeat(batch, 1)
    cu_nodes = torch.arange(batch + 1, dtype=torch.int32) * nodes
    rows = batch * tokens * KV_HEADS * 2 * DIM * 2
    return Case(
        lambda operators: operators.tree_attention(
            q, *caches, table, lengths(batch, context), cu_nodes, mask, scale=DIM**-0.5, max_nodes=nodes
        ),
        lambda results: rows + nbytes(q, mask, *results),
        batch * nodes * heads * tokens * 2 * DIM,
    )


def kv_append(batch: int, nodes: int) -> Case:
    table = pages(batch, BLOCK)
    caches = [torch.zeros(table.numel(), BLOCK, KV_HEADS, DIM, dtype=torch.bfloat16) for _ in range(2)]
    rows = torch.randn(batch * nodes, KV_HEADS, DIM, dtype=torch.bfloat16)
    cu_nodes = torch.arange(batch + 1, dtype=torch.int32) * nodes
    return Case(
        lambda operators: operators.kv_append(rows, rows.clone(), *caches, table, lengths(batch, 9), cu_nodes),
        lambda results: 2 * 2 * nbytes(rows),  # K and V, in and out
    )


def kv_rollback(batch: int) -> Case:
    """The caches of 32 layers, 4 accepted drafts to move. Floor: their rows, in and out."""
    table = pages(batch, BLOCK)
    caches = [
        torch.zeros(table.numel(), BLOCK, KV_HEADS, DIM, dtype=torch.bfloat16) for _ in range(2 * rollback.LAYERS)
    ]
    path = torch.tensor([rollback.PATH] * batch, dtype=torch.int32)
    moved = len(rollback.PATH) - 1
    return Case(
        lambda operators: operators.kv_rollback(caches, table, lengths(batch, 9), lengths(batch, moved), path),
        lambda results: 2 * batch * moved * len(caches) * KV_HEADS * DIM * 2,
    )


def tree_mask(batch: int, nodes: int) -> Case:
    parents = torch.tensor(inputs.random_tree(nodes) * batch, dtype=torch.int32)
    return once("tree_mask", parents, torch.arange(batch + 1, dtype=torch.int32) * nodes, nodes)


def ngram_propose(batch: int, context: int) -> Case:
    history = torch.randint(1000, (batch, context))
    return once("ngram_propose", history, lengths(batch, context), min_n=1, max_n=4, num_draft=8)


def philox_uniform(batch: int, nodes: int) -> Case:
    return once("philox_uniform", torch.arange(batch), torch.arange(batch), nodes, 1)


def advance(batch: int, nodes: int) -> Case:
    history = torch.zeros(batch, 4096, dtype=torch.int64)
    emitted = torch.randint(1000, (batch, nodes))
    tensors = (lengths(batch, 9), torch.zeros(batch, dtype=torch.bool), emitted, lengths(batch, nodes - 1))
    end = (torch.tensor([2]), lengths(batch, 4000))
    return Case(
        lambda operators: operators.advance(history, *tensors, *end),
        lambda root: nbytes(*tensors, *end, root) + nbytes(emitted),
    )


# Operator -> its axes: the points of a short run, and of a full one.
SHORT: dict[Callable[..., Case], dict[str, list[int]]] = {
    verify_chain: {"batch": [1, 8], "drafts": [4], "vocab": [32000]},
    verify_tree: {"batch": [1], "nodes": [64], "vocab": [32000]},
    sample: {"batch": [1, 8], "vocab": [32000]},
    tree_attention: {"batch": [1], "context": [1024, 8192], "nodes": [64], "heads": [32]},
    kv_append: {"batch": [1, 8, 64], "nodes": [9]},
    kv_rollback: {"batch": [1, 8]},
    tree_mask: {"batch": [1, 64], "nodes": [64]},
    ngram_propose: {"batch": [1, 64], "context": [4096]},
    philox_uniform: {"batch": [1, 64], "nodes": [9]},
    advance: {"batch": [1, 64], "nodes": [9]},
}
FULL: dict[Callable[..., Case], dict[str, list[int]]] = {
    **SHORT,
    verify_chain: {"batch": [1, 8, 64], "drafts": [4, 8], "vocab": [32000, 152064]},
    verify_tree: {"batch": [1, 8, 64], "nodes": [64], "vocab": [32000, 152064]},
    sample: {"batch": [1, 8, 64], "vocab": [32000, 152064]},
    tree_attention: {"batch": [1, 8, 64], "context": [1024, 8192, 131072], "nodes": [5, 64], "heads": [32, 64]},
    kv_rollback: {"batch": [1, 8, 64]},
}


def points(axes: dict[str, list[int]]) -> Iterator[dict[str, int]]:
    return (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))


def launches(profile: str, keep_log: bool, run: Callable[[], Any]) -> tuple[Any, list[dict[str, Any]]]:
    """What the call returns, and the simulator's report of each kernel that it launched."""
    torch.ops.specdec_sim.configure(profile, keep_reports=True, keep_log=keep_log)
    results = run()
    return results, json.loads(torch.ops.specdec_sim.take_reports())


def busy(reports: list[dict[str, Any]], kind: str) -> dict[str, float]:
    """Each pipe's share of the time, as a mean over all the device's cores of this kind."""
    total = sum(report["cycles"] for report in reports) * reports[0]["device"][f"{kind}_cores"]
    own = [core for report in reports for core in report["cores"] if core["cube"] == (kind == "cube")]
    return {pipe: sum(core["busy"][pipe] for core in own) / total for pipe in PIPES}


def cores(reports: list[dict[str, Any]], kind: str) -> int:
    """How many cores of this kind the widest launch used."""
    return max(sum(core["cube"] == (kind == "cube") for core in report["cores"]) for report in reports)


def summary(case: Case, results: Any, reports: list[dict[str, Any]]) -> dict[str, Any]:
    device = reports[0]["device"]
    moved = sum(report["gm_read"] + report["gm_written"] for report in reports)
    floor = case.floor_bytes(results)
    macs = sum(report["macs"] for report in reports)
    peak_macs = CUBE_MACS * device["cube_cores"] * device["clock_ghz"] * 1e3  # a microsecond
    roofline = max(floor / (device["hbm_gb_s"] * 1e3), case.floor_macs / peak_macs)
    estimate = sum(report["microseconds"] for report in reports)
    return {
        "gm_bytes": moved,
        "floor_bytes": floor,
        "macs": macs,
        "floor_macs": case.floor_macs,
        "kernels": len(reports),
        "estimate_us": estimate,
        "roofline_us": roofline,
        "cores": {kind: cores(reports, kind) for kind in ("vector", "cube")},
        "busy": {kind: busy(reports, kind) for kind in ("vector", "cube")},
    }


def line(row: dict[str, Any]) -> dict[str, str]:
    """The row's cells. Cores are cube + vector; a pipe's share of the time is that of the vector or cube cores."""
    cells = {
        "operator": row["operator"],
        "point": " ".join(f"{axis}={value}" for axis, value in row["point"].items()),
        "GM bytes": f"{row['gm_bytes']}",
        "/ floor": f"{row['gm_bytes'] / row['floor_bytes']:.2f}",
        "MACs": f"{row['macs'] / 1e6:.1f}M" if row["macs"] else "-",
        "cores": f"{row['cores']['cube']}+{row['cores']['vector']}",
        "us": f"{row['estimate_us']:.1f}",
        "/ roofline": f"{row['estimate_us'] / row['roofline_us']:.2f}",
    }
    vector, cube = row["busy"]["vector"], row["busy"]["cube"]
    cells.update({f"{pipe} %": f"{100 * vector[pipe]:.0f}" for pipe in ("MTE2", "V", "MTE3", "S")})
    cells.update({f"cube {pipe} %": f"{100 * cube[pipe]:.0f}" for pipe in ("MTE2", "MTE1", "M", "FIX")})
    return cells


def print_table(rows: list[dict[str, Any]]) -> None:
    lines = [line(row) for row in rows]
    widths = {column: max(len(column), *(len(cells[column]) for cells in lines)) for column in lines[0]}
    for cells in [dict(zip(widths, widths, strict=True)), *lines]:
        print("  ".join(cells[column].rjust(width) for column, width in widths.items()))
    print(f"Times, and shares of them: {LABEL}. Bytes and MACs are counted.")


def draw(row: dict[str, Any], reports: list[dict[str, Any]], file: Path) -> None:
    """The pipes of the busiest core of each kind over time."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(12, 4))
    begin = 0.0
    lanes: dict[str, list[tuple[float, float]]] = {}
    for report in reports:
        cycles_a_us = report["device"]["clock_ghz"] * 1e3
        for kind in ("vector", "cube"):
            cores = [core for core in report["cores"] if core["cube"] == (kind == "cube") and core.get("log")]
            for pipe, _, start, end in max(cores, key=lambda core: core["cycles"])["log"] if cores else ():
                lane = lanes.setdefault(f"{kind} {pipe}", [])
                lane.append(((begin + start) / cycles_a_us, (end - start) / cycles_a_us))
        begin += report["cycles"]
    for position, name in enumerate(lanes):
        axes.broken_barh(lanes[name], (position - 0.4, 0.8), color=f"C{position}")
    axes.set_yticks(range(len(lanes)), list(lanes))
    axes.set_xlabel("microseconds")
    point = ", ".join(f"{axis} {value}" for axis, value in row["point"].items())
    axes.set_title(f"{row['operator']}, {point}: the busiest core of each kind ({LABEL})")
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--profile", default="910B3", help="910B1, 910B2, 910B3, 910B4 or A3")
    parser.add_argument("--full", action="store_true", help="all shapes: the largest have not been run")
    parser.add_argument("--operators", nargs="+", metavar="NAME", help="only these")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--timeline", type=Path, metavar="FOLDER", help="draw the first point of each operator (PNG)")


def main(args: argparse.Namespace) -> None:
    library = Path(verify.__file__).parents[1] / "specdec_ops" / "_sim.so"
    if not library.exists():
        raise SystemExit("the simulator's operators are not built: SPECDEC_SIM=1 pip install --no-build-isolation -e .")
    torch.ops.load_library(str(library))
    rows = []
    for make, axes in (FULL if args.full else SHORT).items():
        name = make.__name__
        if args.operators and name not in args.operators:
            continue
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"specdec_sim::{name}", "CPU"):
            print(f"{name}: left out, it has no Ascend C kernel in this build", file=sys.stderr)
            continue
        for index, point in enumerate(points(axes)):
            torch.manual_seed(0)
            case, start = make(**point), time.perf_counter()
            drawn = args.timeline is not None and index == 0
            results, reports = launches(args.profile, drawn, lambda: case.run(torch.ops.specdec_sim))  # noqa: B023
            row = {"operator": name, "point": point, **summary(case, results, reports)}
            row["simulated_in_s"] = time.perf_counter() - start
            rows.append(row)
            print(f"{name} {point}: simulated in {row['simulated_in_s']:.1f} s", file=sys.stderr, flush=True)
            if drawn:
                args.timeline.mkdir(parents=True, exist_ok=True)
                draw(row, reports, args.timeline / f"{name}.png")
    if rows:
        print_table(rows)
    if args.json:
        args.json.write_text(json.dumps({"label": LABEL, "profile": args.profile, "rows": rows}, indent=1) + "\n")
