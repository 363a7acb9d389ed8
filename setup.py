"""Builds `specdec_ops/_C.so`: the operators' schemas and the CPU backend; with `SPECDEC_SIM=1` also `specdec_ops/_sim.so`:
the NPU's host code and Ascend C kernels on the host simulator, `torch.ops.specdec_sim`.

Every source in `kernels/cpu` except `dispatch.cpp` is compiled once per CPU capability (see `kernels/cpu/dispatch.h`),
those named `*_amx.cpp` for AMX alone, and the sources in `bindings` once. Ninja does the work, so that a second build
compiles only what changed; ccache is used when it is on PATH. `SPECDEC_SANITIZE=1` builds with AddressSanitizer and
UndefinedBehaviorSanitizer.
"""

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from ninja import ninja_syntax
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent

CAPABILITIES = {"baseline": ""}
if platform.machine() == "x86_64":
    CAPABILITIES["avx2"] = "-mavx2 -mfma -mf16c"
    CAPABILITIES["avx512"] = "-mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c"
    CAPABILITIES["amx"] = CAPABILITIES["avx512"] + " -mamx-tile -mamx-bf16"


class Source(NamedTuple):
    path: Path
    flags: str
    suffix: str = ""  # where a source is compiled more than once


def sources(pattern: str, flags: str = "") -> Iterator[Source]:
    return (Source(path, flags) for path in sorted(ROOT.glob(pattern)))


def cpu_sources() -> Iterator[Source]:
    # The kernels' arithmetic: contractions to fma are wanted, reordering and ignoring NaN are not.
    # GCC 12 takes its own _mm512_undefined_ps() for a use of an uninitialised value.
    flags = "-O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math -Wno-uninitialized -Wno-maybe-uninitialized"
    # Baseline objects come first: of a template instantiated in several objects the linker keeps the first copy, and
    # that one must run everywhere.
    yield from sources("bindings/*.cpp", flags)
    yield from sources("bindings/cpu/*.cpp", flags)
    yield Source(ROOT / "kernels/cpu/dispatch.cpp", flags)
    for capability, extra in CAPABILITIES.items():
        for path in sorted((ROOT / "kernels/cpu").glob("*.cpp")):
            if path.name != "dispatch.cpp" and (capability == "amx") == path.stem.endswith("_amx"):
                yield Source(path, f"{flags} {extra} -DSPECDEC_CAPABILITY={capability}", f".{capability}")


def sim_sources() -> Iterator[Source]:
    flags = f"-ffp-contract=off -DSPECDEC_HOSTSIM -DSPECDEC_SIM -I{ROOT}/kernels/hostsim/include"
    checks = [source for source in sources("bindings/*.cpp", f"-O1 {flags}") if source.path.stem != "library"]
    yield from checks
    yield from sources("bindings/sim/*.cpp", f"-O1 {flags}")
    yield from (s for s in sources("bindings/npu/*.cpp", f"-O1 {flags}") if s.path.stem != "device")
    yield from sources("bindings/npu/*.asc", f"-O1 {flags} -Wno-unused-parameter -x c++")
    yield from sources("kernels/hostsim/src/*.cpp", f"-O2 {flags}")


LIBRARIES = {"_C": cpu_sources}
if os.environ.get("SPECDEC_SIM") == "1":
    LIBRARIES["_sim"] = sim_sources


class NinjaBuild(build_ext):
    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        sanitize = os.environ.get("SPECDEC_SANITIZE") == "1"
        library = ext.name.rpartition(".")[2]
        build = ROOT / "build" / ("sanitize" if sanitize else "release") / library
        build.mkdir(parents=True, exist_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(build / "build.ninja", "w") as file:
            writer = ninja_syntax.Writer(file, width=120)  # type: ignore[arg-type]  # it takes any text file
            self.write_ninja(writer, target, LIBRARIES[library](), sanitize)
        jobs = os.environ.get("MAX_JOBS", str(os.cpu_count() or 1))
        subprocess.check_call(["ninja", "-C", str(build), "-j", jobs])

    def write_ninja(self, writer: ninja_syntax.Writer, target: Path, sources: Iterator[Source], sanitize: bool) -> None:
        torch_dir = Path(torch.__file__).resolve().parent
        flags = [
            "-std=gnu++17 -g1 -fPIC -fopenmp -fvisibility=hidden -fvisibility-inlines-hidden",
            "-Wall -Wextra -Wno-psabi -Wno-unknown-pragmas",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
            f"-I{ROOT} -isystem {torch_dir}/include -isystem {torch_dir}/include/torch/csrc/api/include",
        ]
        # OpenMP comes from the library that torch has already loaded: linking a second one would double the threads.
        link = [f"-shared -L{torch_dir}/lib -lc10 -ltorch_cpu -ltorch"]
        sanitizers = ""
        if sanitize:
            sanitizers = "-O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined"
            link.append("-fsanitize=address,undefined")
        writer.variable("cxx", " ".join(filter(None, [shutil.which("ccache"), os.environ.get("CXX", "g++")])))
        writer.variable("flags", " ".join(flags))
        writer.rule(
            "compile",
            f"$cxx -MMD -MF $out.d $flags $extra {sanitizers} -c $in -o $out",
            "compile $out",
            depfile="$out.d",
            deps="gcc",
        )
        writer.rule("link", f"$cxx $in {' '.join(link)} -o $out", "link $out")
        objects = []
        for source in sources:
            objects.append(f"{source.path.relative_to(ROOT)}{source.suffix}.o")
            writer.build([objects[-1]], "compile", [str(source.path)], variables={"extra": source.flags})
        writer.build([str(target)], "link", objects)
        writer.default(str(target))

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split(".")).with_suffix(".so"))  # loaded by torch, not imported: no Python ABI tag


setup(
    ext_modules=[Extension(f"specdec_ops.{library}", []) for library in LIBRARIES], cmdclass={"build_ext": NinjaBuild}
)
