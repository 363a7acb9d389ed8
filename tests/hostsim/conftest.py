"""Builds the simulator and its test programs once, with ninja."""

import fcntl
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOSTSIM = ROOT / "kernels" / "hostsim"
CPP = Path(__file__).resolve().parent / "cpp"

PROGRAMS = {
    "add": [HOSTSIM / "examples" / "add.cpp"],
    "softmax": [HOSTSIM / "examples" / "softmax.cpp"],
    "matmul": [HOSTSIM / "examples" / "matmul.cpp"],
    "faults": sorted(CPP.glob("faults*.cpp")),
    "functions": sorted(CPP.glob("functions*.cpp")),
}


def _ninja() -> str:
    beside = Path(sys.executable).parent / "ninja"
    return str(beside) if beside.exists() else "ninja"


def _rules() -> str:
    compiler = shutil.which("g++") or shutil.which("clang++") or "c++"
    ccache = "ccache " if shutil.which("ccache") else ""
    flags = f"-std=c++17 -Wall -Wextra -Wno-unused-parameter -I {HOSTSIM / 'include'}"
    lines = [
        "rule compile",
        f"  command = {ccache}{compiler} {flags} $level -MMD -MF $out.d -c $in -o $out",
        "  depfile = $out.d",
        "rule link",
        f"  command = {compiler} $in -o $out",
    ]

    def compile_(source: Path, level: str) -> str:
        target = f"{source.parent.name}_{source.stem}.o"
        lines.extend([f"build {target}: compile {source}", f"  level = {level}"])
        return target

    core = [compile_(source, "-O2") for source in sorted((HOSTSIM / "src").glob("*.cpp"))]
    for program, sources in PROGRAMS.items():
        # The test programs are quick to run and slow to optimise.
        level = "-O0" if sources[0].parent == CPP else "-O1"
        objects = [compile_(source, level) for source in sources]
        lines.append(f"build {program}: link {' '.join(objects + core)}")
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="session")
def programs(pytestconfig: pytest.Config) -> Path:
    """Directory of the built programs."""
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        pytest.skip("no C++ compiler")
    build = Path(pytestconfig.cache.mkdir("hostsim"))
    with open(build / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (build / "build.ninja").write_text(_rules())
        done = subprocess.run([_ninja(), "-j2"], cwd=build, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.fail(done.stdout + done.stderr, pytrace=False)
    return build
