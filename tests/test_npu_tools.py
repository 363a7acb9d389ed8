"""`bench npu_model` and `npu-check`, as far as they go without an NPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from backends import BACKENDS

from bench import __main__ as runner
from bench import npu_check, npu_model

ROOT = Path(__file__).parents[1]

simulated = pytest.mark.skipif(isinstance(BACKENDS["sim"][0], str), reason=str(BACKENDS["sim"][0]))


def report():
    busy = {pipe: 10.0 for pipe in npu_model.PIPES}
    cores = [{"cube": cube, "cycles": 100.0, "busy": busy} for cube in (False, False, True)]
    device = {"cube_cores": 2, "vector_cores": 4, "clock_ghz": 2.0, "hbm_gb_s": 1000.0}
    traffic = {"gm_read": 3000, "gm_written": 1000, "macs": 2 * npu_model.CUBE_MACS}
    return {"cores": cores, "device": device, **traffic, "cycles": 200.0, "microseconds": 0.1}


def test_summary_of_two_launches():
    case = npu_model.Case(lambda operators: None, lambda results: results, 40 * npu_model.CUBE_MACS)
    summary = npu_model.summary(case, 5000, [report(), report()])
    assert summary["gm_bytes"] == 8000 and summary["floor_bytes"] == 5000
    assert summary["macs"] == 4 * npu_model.CUBE_MACS
    assert summary["estimate_us"] == pytest.approx(0.2)
    # 5000 bytes at 1000 GB/s take 5 ns; 40 cycles' products on two cores at 2 GHz take 10 ns.
    assert summary["roofline_us"] == pytest.approx(0.01)
    # Two of four vector cores were busy for 10 of 200 cycles, one of two cube cores likewise; twice.
    assert summary["busy"]["vector"]["V"] == pytest.approx(0.025)
    assert summary["busy"]["cube"]["M"] == pytest.approx(0.025)
    assert summary["cores"] == {"vector": 2, "cube": 1}


@pytest.mark.parametrize("make", npu_model.SHORT, ids=lambda make: make.__name__)
def test_cases_run(make):
    """On the CPU's operators: the arguments are what they take, and the floor can be told from what they return."""
    torch.manual_seed(0)
    axes = {"vocab": 500, "batch": 2, "context": 300, "nodes": 9, "drafts": 4, "heads": 16}
    case = make(**{axis: axes[axis] for axis in npu_model.SHORT[make]})
    results = case.run(torch.ops.specdec)
    assert case.floor_bytes(results) > 0
    assert set(npu_model.FULL[make]) == set(npu_model.SHORT[make])


@simulated
def test_model_of_philox(tmp_path, capsys):
    file = tmp_path / "model.json"
    runner.main(f"npu_model --operators philox_uniform --json {file}".split())
    written = json.loads(file.read_text())
    assert written["label"] == "model estimate, uncalibrated"
    assert [row["point"] for row in written["rows"]] == list(
        npu_model.points(npu_model.SHORT[npu_model.philox_uniform])
    )
    for row in written["rows"]:
        assert row["gm_bytes"] >= row["floor_bytes"]
        assert row["estimate_us"] > row["roofline_us"]
    output = capsys.readouterr().out
    assert "model estimate, uncalibrated" in output and "philox_uniform" in output


@simulated
def test_operators_without_a_kernel_are_named(monkeypatch, capsys):
    monkeypatch.setattr(torch._C, "_dispatch_has_kernel_for_dispatch_key", lambda name, key: False)
    runner.main(["npu_model", "--operators", "kv_append"])
    output = capsys.readouterr()
    assert "kv_append: left out, it has no Ascend C kernel in this build" in output.err and not output.out


@simulated
def test_timeline(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    runner.main(f"npu_model --operators philox_uniform --timeline {tmp_path}".split())
    assert (tmp_path / "philox_uniform.png").stat().st_size > 1000


def test_npu_check_says_that_there_is_no_npu():
    if npu_check.no_npu() is None:
        pytest.skip("there is an NPU")
    done = subprocess.run([sys.executable, "-m", "bench.npu_check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == npu_check.NO_NPU
    assert done.stderr.startswith("no NPU: torch_npu")


def test_make_npu_check():
    text = (ROOT / "Makefile").read_text()
    assert "npu-check:" in text and "bench.npu_check" in text


def test_report_holds_every_step_and_what_failed(tmp_path, monkeypatch):
    def conformance() -> None:
        raise OSError("no pytest here")

    monkeypatch.setattr(npu_check, "no_npu", lambda: None)
    monkeypatch.setattr(npu_check, "machine", lambda: {"device": "a test"})
    monkeypatch.setattr(npu_check, "build", lambda: npu_check.command("-c", "print('built'); raise SystemExit(2)"))
    monkeypatch.setattr(npu_check, "conformance", conformance)
    monkeypatch.setattr(npu_check, "benchmarks", lambda: [{"operator": "philox_uniform"}])
    npu_check.main(["--out", str(tmp_path / "report.json")])
    written = json.loads((tmp_path / "report.json").read_text())
    assert written["machine"] == {"device": "a test"}
    assert written["build"]["status"] == 2 and written["build"]["output"] == ["built"]
    assert "no pytest here" in written["conformance"]["error"]
    assert written["benchmarks"] == [{"operator": "philox_uniform"}]
