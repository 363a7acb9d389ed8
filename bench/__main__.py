"""`python -m bench attention|verify|tree|rollback|sample`: a table on the screen, JSON in a file."""

import argparse
import importlib
import itertools
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import torch

from bench import machine, peers, timing

BENCHMARKS = ("attention", "verify", "tree", "rollback", "sample")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    commands = parser.add_subparsers(dest="benchmark", required=True)
    for name in BENCHMARKS:
        module = importlib.import_module(f"bench.{name}")
        command = commands.add_parser(name, help=(module.__doc__ or "").splitlines()[0])
        command.add_argument("--threads", type=int, default=2)
        command.add_argument("--quick", action="store_true", help="fewer cells, fewer repeats")
        command.add_argument("--json", type=Path, metavar="FILE", help="write the measurements here")
        for axis, values in module.AXES.items():
            command.add_argument(f"--{axis}", type=type(values[0]), nargs="+", metavar=axis.upper())
        command.set_defaults(module=module)
    return parser.parse_args(argv)


def points(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The cells to measure: the product of the axes, each cut down by --quick and by its own option."""
    axes = {**args.module.AXES, **(args.module.QUICK if args.quick else {})}
    axes = {axis: getattr(args, axis) or values for axis, values in axes.items()}
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def ratios(row: dict[str, Any]) -> dict[str, float]:
    """How many times our time each other run takes, and the best of the peers; and our time in floors."""
    medians = {name: times["median"] for name, times in row["times_s"].items()}
    if "ours" not in medians:
        return {}
    ours = medians.pop("ours")
    result = {f"{name} / ours": median / ours for name, median in medians.items()}
    peers = [median for name, median in medians.items() if name not in row["partial"]]
    if peers:
        result["best peer / ours"] = min(peers) / ours
    return {**result, "ours / floor": ours / row["floor"]["s"]}


def cells(row: dict[str, Any]) -> dict[str, str]:
    line = {axis: str(value) for axis, value in row["point"].items()}
    for name, times in row["times_s"].items():
        line[f"{name} ms"] = f"{times['median'] * 1e3:.3f}"
    line["floor ms"] = f"{row['floor']['s'] * 1e3:.3f}"
    line.update({name: f"{ratio:.2f}" for name, ratio in ratios(row).items()})
    line.update({name: f"{value:.2f}" for name, value in row["facts"].items() if isinstance(value, float)})
    return line


def print_table(rows: list[dict[str, Any]]) -> None:
    lines = [cells(row) for row in rows]
    columns = list(dict.fromkeys(column for line in lines for column in line))
    widths = [max(len(column), *(len(line.get(column, "-")) for line in lines)) for column in columns]
    for line in [dict(zip(columns, columns, strict=True)), *lines]:
        print("  ".join(line.get(column, "-").rjust(width) for column, width in zip(columns, widths, strict=True)))


def print_summary(rows: list[dict[str, Any]]) -> None:
    for dtype in dict.fromkeys(row["point"]["dtype"] for row in rows):
        measured = [ratios(row) for row in rows if row["point"]["dtype"] == dtype]
        for name in dict.fromkeys(name for row in measured for name in row):
            values = [row[name] for row in measured if name in row]
            low, middle, high = min(values), statistics.median(values), max(values)
            print(f"{dtype} {name}: min {low:.2f}, median {middle:.2f}, max {high:.2f} ({len(values)} cells)")


def main() -> None:
    args = parse()
    torch.set_num_threads(args.threads)
    report = {"benchmark": args.benchmark, "machine": machine.facts(), "peers": peers.versions(), "rows": []}
    print(json.dumps({"machine": report["machine"], "peers": report["peers"]}, indent=1))
    skipped: set[str] = set()
    for point in points(args):
        torch.manual_seed(0)
        case = args.module.case(**point)
        for name, reason in case.skipped.items():
            if f"{name}: {reason}" not in skipped:
                print(f"skipped {name}: {reason}", file=sys.stderr)
                skipped.add(f"{name}: {reason}")
        report["rows"].append({"point": point, **timing.measure(case, 0.3 if args.quick else 1.5)})
        del case  # its tensors go before the next cell's come
    print_table(report["rows"])
    print_summary(report["rows"])
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
