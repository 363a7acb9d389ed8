"""The simulator finds every planted fault, computes what the API promises and runs the example kernels."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOSTSIM = ROOT / "kernels" / "hostsim"
CPP = Path(__file__).resolve().parent / "cpp"

FAULT_SOURCES = "".join(path.read_text() for path in sorted(CPP.glob("faults_*.cpp")))
CASES = re.findall(r"^FAULT\((\w+),", FAULT_SOURCES, re.M) + re.findall(r'register_\w+\(\s*\{"(\w+)"', FAULT_SOURCES)
CHECKS = re.findall(
    r"^CHECK_FUNCTIONS\((\w+)\)", "".join(path.read_text() for path in CPP.glob("functions_*.cpp")), re.M
)


def run(program: Path, *arguments: str) -> str:
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("case", CASES)
def test_fault_is_found_and_its_mended_twin_is_clean(programs: Path, case: str) -> None:
    run(programs / "faults", case)


def test_every_kind_of_fault_has_a_case() -> None:
    header = (HOSTSIM / "include" / "hostsim" / "report.h").read_text()
    kinds = re.findall(r"^\s+(k\w+),", header.split("enum class Fault")[1].split("};")[0], re.M)
    assert len(kinds) > 20
    assert [kind for kind in kinds if not re.search(rf"\b{kind}\b", FAULT_SOURCES)] == []


def test_message_names_both_sides(programs: Path) -> None:
    lines = (CPP / "faults_sync.cpp").read_text().split("\n")
    start = next(i for i, line in enumerate(lines) if line.startswith("FAULT(mte2_to_v,"))
    copy = next(i for i in range(start, len(lines)) if "DataCopy(" in lines[i]) + 1
    add = next(i for i in range(start, len(lines)) if "Adds(" in lines[i]) + 1
    text = run(programs / "faults", "mte2_to_v")
    assert "kernel mte2_to_v, AIV block 0.0, pipe V, Adds" in text
    assert f"faults_sync.cpp:{add}; UB [0x0, 0x20)" in text
    assert re.search(rf"earlier access: AIV block 0.0, pipe MTE2, DataCopy at \S*faults_sync.cpp:{copy}\b", text)


@pytest.mark.parametrize("check", CHECKS)
def test_functions_agree_with_plain_cpp(programs: Path, check: str) -> None:
    run(programs / "functions", check)


@pytest.mark.parametrize("seed", ["0", "1", "2", "3"])
@pytest.mark.parametrize("program", ["add", "softmax", "matmul"])
def test_examples_are_right_and_clean_in_any_order_of_cores(programs: Path, program: str, seed: str) -> None:
    assert "FAIL" not in run(programs / program, seed)


@pytest.mark.parametrize("length", ["8", "1000", "152059", "152064"])
def test_softmax_of_any_length(programs: Path, length: str) -> None:
    assert "FAIL" not in run(programs / "softmax", "0", length)


def compile_only(compiler: str, source: str, *flags: str) -> subprocess.CompletedProcess:
    command = [compiler, "-std=c++17", "-fsyntax-only", "-I", HOSTSIM / "include", *flags, "-x", "c++", "-"]
    return subprocess.run(command, input=source, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("Add(b, b, b, 32);", "Add does not support this type"),
        ("Cast(b, f, RoundMode::CAST_RINT, 32);", "Cast does not support this pair of types"),
        ("Mmad(f, b, b, MmadParams{16, 16, 16, 0, false, true});", "Mmad does not support these types"),
        ("PipeBarrier<PIPE_S>();", "PipeBarrier does not support PIPE_S"),
    ],
)
def test_unsupported_types_do_not_compile(statement: str, message: str) -> None:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    declarations = "LocalTensor<uint8_t> b; LocalTensor<float> f;"
    source = f'#include "kernel_operator.h"\nusing namespace AscendC;\nvoid kernel() {{ {declarations} {statement} }}\n'
    done = compile_only(compiler, source)
    assert done.returncode != 0 and message in done.stderr, done.stderr


def test_every_supported_call_compiles() -> None:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    done = compile_only(compiler, f'#include "{CPP / "api_calls.h"}"\n', "-Wall", "-Wextra", "-Wno-unused-parameter")
    assert done.returncode == 0 and "warning" not in done.stderr, done.stderr


def test_examples_do_not_narrow() -> None:
    """The device compiler is a clang: it rejects initialisers that narrow."""
    compiler = shutil.which("clang++") or shutil.which("clang++-15")
    if compiler is None:
        pytest.skip("no clang++")
    kernels = [
        HOSTSIM / "examples" / f"{name}_kernel.h" for name in ("add_queue", "add_static", "softmax", "matmul_silu")
    ]
    source = "".join(f'#include "{kernel}"\n' for kernel in kernels)
    done = compile_only(compiler, source, "-Wall", "-Wno-unused-parameter", "-Werror=narrowing")
    assert done.returncode == 0, done.stderr
