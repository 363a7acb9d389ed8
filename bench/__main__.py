"""`python -m bench attention|verify|tree|rollback|sample|step`: a table on the screen, JSON in a file.

`python -m bench npu_model` does not measure: it runs the Ascend C kernels on the host simulator.
"""

import argparse
import importlib
import itertools
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import torch

from bench import machine, npu_model, peers, step, timing

BENCHMARKS = ("attention", "verify", "tree", "rollback", "sample", "step")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    commands = parser.add_subparsers(dest="benchmark", required=True)
    for name in BENCHMARKS:
        module = importlib.import_module(f"bench.{name}")
        command = commands.add_parser(name, help=(module.__doc__ or "").splitlines()[0])
        command.add_argument("--threads", type=int, default=2)
        command.add_argument("--quick", action="store_true", help="fewer cells, fewer repeats")
        command.add_argument("--best", action="store_true", help="print best times, not medians: for a busy machine")
        command.add_argument("--json", type=Path, metavar="FILE", help="write the measurements here")
        for axis, values in module.AXES.items():
            command.add_argument(f"--{axis}", type=type(values[0]), nargs="+", metavar=axis.upper())
        command.set_defaults(module=module)
    model = commands.add_parser("npu_model", help=(npu_model.__doc__ or "").splitlines()[0])
    npu_model.add_arguments(model)
    model.set_defaults(module=npu_model)
    return parser.parse_args(argv)


def points(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The cells to measure: the product of the axes, each cut down by --quick and by its own option."""
    axes = {**args.module.AXES, **(args.module.QUICK if args.quick else {})}
    axes = {axis: getattr(args, axis) or values for axis, values in axes.items()}
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def ratios(row: dict[str, Any], statistic: str) -> dict[str, float]:
    """How many times our time each other run takes, and the best of the peers; and our time in floors."""
    times = {name: values[statistic] for name, values in row["times_s"].items()}
    if "ours" not in times:
        return {}
    ours, floor = times.pop("ours"), times.pop("floor")
    result = {f"{name} / ours": time / ours for name, time in times.items()}
    peers = [time for name, time in times.items() if name not in row["partial"]]
    if peers:
        result["best peer / ours"] = min(peers) / ours
    return {**result, "ours / floor": ours / floor}


def print_table(rows: list[dict[str, Any]], statistic: str) -> None:
    lines = []
    for row in rows:
        line = {axis: str(value) for axis, value in row["point"].items()}
        line.update({f"{name} ms": f"{values[statistic] * 1e3:.3f}" for name, values in row["times_s"].items()})
        numbers = {**ratios(row, statistic), **row["facts"]}
        line.update({name: f"{value:.2f}" for name, value in numbers.items()})
        lines.append({**line, "clean": "yes" if row["clean"] else "no"})
    columns = list(dict.fromkeys(column for line in lines for column in line))
    widths = [max(len(column), *(len(line.get(column, "-")) for line in lines)) for column in columns]
    for line in [dict(zip(columns, columns, strict=True)), *lines]:
        print("  ".join(line.get(column, "-").rjust(width) for column, width in zip(columns, widths, strict=True)))


def print_summary(rows: list[dict[str, Any]], statistic: str) -> None:
    def spread(values: list[float]) -> str:
        return f"min {min(values):.2f}, median {statistics.median(values):.2f}, max {max(values):.2f}"

    for dtype in dict.fromkeys(row["point"]["dtype"] for row in rows):
        measured = [ratios(row, statistic) for row in rows if row["point"]["dtype"] == dtype]
        for name in dict.fromkeys(name for row in measured for name in row):
            values = [row[name] for row in measured if name in row]
            print(f"{dtype} {name}: {spread(values)} ({len(values)} cells)")
    floors = [row["times_s"]["floor"] for row in rows]
    print(f"noise, the floor's median / its best: {spread([floor['median'] / floor['min'] for floor in floors])}")
    print(f"clean cells, whose calls kept their cores: {sum(row['clean'] for row in rows)} of {len(rows)}")


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    if args.module is npu_model:
        return npu_model.main(args)
    torch.set_num_threads(args.threads)
    seconds, alone = 0.3 if args.quick else 1.5, args.module is step  # which has no peers, and no floor
    report = {"benchmark": args.benchmark, "machine": machine.facts(), "rows": []}
    report["peers"] = {} if alone else peers.versions()
    print(json.dumps({"machine": report["machine"], "peers": report["peers"]}, indent=1))
    skipped: set[str] = set()
    for point in points(args):
        torch.manual_seed(0)
        if alone:
            report["rows"].append({"point": point, **step.measure(seconds, **point)})
            continue
        case = args.module.case(**point)
        for name, reason in case.skipped.items():
            if f"{name}: {reason}" not in skipped:
                print(f"skipped {name}: {reason}", file=sys.stderr)
                skipped.add(f"{name}: {reason}")
        if not case.runs:
            continue
        report["rows"].append({"point": point, **timing.measure(case, seconds)})
        del case  # its tensors go before the next cell's come
    statistic = "min" if args.best else "median"
    if report["rows"]:
        print_table(report["rows"], statistic)
    if report["rows"] and not alone:
        print_summary(report["rows"], statistic)
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
