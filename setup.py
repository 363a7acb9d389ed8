"""Builds `specdec_ops/_C.so`: the operators' schemas and the CPU backend.

Every source in `kernels/cpu` except `dispatch.cpp` is compiled once per CPU capability (see `kernels/cpu/dispatch.h`),
those named `*_amx.cpp` for AMX alone, and the sources in `bindings` once. Ninja does the work, so that a second build
compiles only what changed; ccache is used when it is on PATH. `SPECDEC_SANITIZE=1` builds with AddressSanitizer and
UndefinedBehaviorSanitizer.
"""

import os
import platform
import shutil
import subprocess
from pathlib import Path

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


class NinjaBuild(build_ext):
    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        sanitize = os.environ.get("SPECDEC_SANITIZE") == "1"
        build = ROOT / "build" / ("sanitize" if sanitize else "release")
        build.mkdir(parents=True, exist_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(build / "build.ninja", "w") as file:
            writer = ninja_syntax.Writer(file, width=120)  # type: ignore[arg-type]  # it takes any text file
            self.write_ninja(writer, target, sanitize)
        jobs = os.environ.get("MAX_JOBS", str(os.cpu_count() or 1))
        subprocess.check_call(["ninja", "-C", str(build), "-j", jobs])

    def write_ninja(self, writer: ninja_syntax.Writer, target: Path, sanitize: bool) -> None:
        torch_dir = Path(torch.__file__).resolve().parent
        flags = [
            "-std=gnu++17 -O3 -g1 -fPIC -fopenmp -fvisibility=hidden -fvisibility-inlines-hidden",
            # The kernels' arithmetic: contractions to fma are wanted, reordering and ignoring NaN are not.
            "-ffp-contract=fast -fno-math-errno -fno-trapping-math",
            # GCC 12 takes its own _mm512_undefined_ps() for a use of an uninitialised value.
            "-Wall -Wextra -Wno-psabi -Wno-unknown-pragmas -Wno-uninitialized -Wno-maybe-uninitialized",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
            f"-I{ROOT} -isystem {torch_dir}/include -isystem {torch_dir}/include/torch/csrc/api/include",
        ]
        # OpenMP comes from the library that torch has already loaded: linking a second one would double the threads.
        link = [f"-shared -L{torch_dir}/lib -lc10 -ltorch_cpu -ltorch"]
        if sanitize:
            flags.append("-O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined")
            link.append("-fsanitize=address,undefined")
        writer.variable("cxx", " ".join(filter(None, [shutil.which("ccache"), os.environ.get("CXX", "g++")])))
        writer.variable("flags", " ".join(flags))
        writer.rule(
            "compile", "$cxx -MMD -MF $out.d $flags $extra -c $in -o $out", "compile $out", depfile="$out.d", deps="gcc"
        )
        writer.rule("link", f"$cxx $in {' '.join(link)} -o $out", "link $out")
        objects = []

        def compile_source(source: Path, suffix: str = "", extra: str = "") -> None:
            name = f"{source.relative_to(ROOT).with_suffix('')}{suffix}.o"
            objects.append(name)
            writer.build([name], "compile", [str(source)], variables={"extra": extra})

        # Baseline objects come first: of a template instantiated in several objects the linker keeps the first copy,
        # and that one must run everywhere.
        for source in sorted((ROOT / "bindings").glob("*.cpp")) + sorted((ROOT / "bindings/cpu").glob("*.cpp")):
            compile_source(source)
        compile_source(ROOT / "kernels/cpu/dispatch.cpp")
        for capability, extra in CAPABILITIES.items():
            for source in sorted((ROOT / "kernels/cpu").glob("*.cpp")):
                if source.name != "dispatch.cpp" and (capability == "amx") == source.stem.endswith("_amx"):
                    compile_source(source, f".{capability}", f"{extra} -DSPECDEC_CAPABILITY={capability}")
        writer.build([str(target)], "link", objects)
        writer.default(str(target))

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split(".")).with_suffix(".so"))  # loaded by torch, not imported: no Python ABI tag


setup(ext_modules=[Extension("specdec_ops._C", [])], cmdclass={"build_ext": NinjaBuild})
