"""The strict simulator finds a flag that a kernel of this project lacks, and nothing in the kernel as it is."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOSTSIM = ROOT / "kernels" / "hostsim"
COPY = ROOT / "kernels" / "ascendc" / "common" / "copy.h"

pytestmark = pytest.mark.slow  # compiles the simulator

STORE_WAITS_FOR_LOAD = "Order<AscendC::HardEvent::MTE2_MTE3>(event);"
SLOT_IS_FREE_AGAIN = [
    f"AscendC::{call}<AscendC::HardEvent::MTE3_MTE2>({event});"
    for call in ("SetFlag", "WaitFlag")
    for event in ("static_cast<int32_t>(i)", "event")
]


@pytest.fixture(scope="module")
def compiler() -> str:
    found = shutil.which("g++") or shutil.which("clang++")
    if found is None:
        pytest.skip("no C++ compiler")
    return found


def compile_object(compiler: str, source: Path, target: Path, *includes: Path) -> str:
    command = [*filter(None, [shutil.which("ccache")]), compiler, "-std=c++17", "-O1", "-c", source, "-o", target]
    for folder in (*includes, HOSTSIM / "include"):
        command += ["-I", folder]
    subprocess.run(command, check=True)
    return str(target)


@pytest.fixture(scope="module")
def simulator(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Objects of the simulator."""
    build = tmp_path_factory.mktemp("simulator")
    sources = sorted((HOSTSIM / "src").glob("*.cpp"))
    return [compile_object(compiler, source, build / f"{source.stem}.o") for source in sources]


@pytest.fixture
def run_append(compiler: str, simulator: list[str], tmp_path: Path) -> Callable[[list[str]], str]:
    """Compiles kv_append without some lines of the copy it is made of, runs it, and gives what the simulator says."""

    def run(left_out: list[str]) -> str:
        source = COPY.read_text()
        for line in left_out:
            assert source.count(line) == 1, f"{COPY.name} has no such line any more: {line}"
            source = source.replace(line, ";")
        patched = tmp_path / COPY.relative_to(ROOT)
        patched.parent.mkdir(parents=True)
        patched.write_text(source)
        program = tmp_path / "append"
        main = Path(__file__).with_name("append_program.cpp")
        # The patched copy stands before the one that is right.
        kernel = compile_object(compiler, main, tmp_path / "append.o", tmp_path, ROOT)
        subprocess.run([compiler, kernel, *simulator, "-o", program], check=True)
        return subprocess.run([program], check=True, capture_output=True, text=True, timeout=60).stdout

    return run


def test_the_kernel_is_clean(run_append):
    assert run_append([]).strip() == "clean"


def test_a_store_that_does_not_wait_for_its_load(run_append):
    report = run_append([STORE_WAITS_FOR_LOAD])
    assert "[read after write] kernel kv_append" in report and "copy.h" in report


def test_a_load_into_a_slot_that_is_still_being_stored(run_append):
    report = run_append(SLOT_IS_FREE_AGAIN)
    assert "[write after read] kernel kv_append" in report and "copy.h" in report
