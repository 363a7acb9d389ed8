"""Builds the native libraries of `specdec_ops`, each by ninja, so that a second build compiles only what changed.

- `_C.so`: the operators' schemas and the CPU backend. Every source in `kernels/cpu` except `dispatch.cpp` is compiled
  once per CPU capability (see `kernels/cpu/dispatch.h`), those named `*_amx.cpp` and `*_avx512bf16.cpp` for that alone,
  and the sources in `bindings` once.
- `_npu.so`: the NPU's host code and Ascend C kernels, where bisheng (of CANN; `ASCEND_HOME_PATH` or PATH) and torch_npu
  are found. With `SPECDEC_NPU=1` it is an error if they are not; `SPECDEC_NPU=0` leaves the library out.
- `_sim.so`, with `SPECDEC_SIM=1`: the same host code and kernels on the host simulator, `torch.ops.specdec_sim`.

ccache is used when it is on PATH. `SPECDEC_SANITIZE=1` builds with AddressSanitizer and UndefinedBehaviorSanitizer, and
emulates AMX.
"""

import importlib.util
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TextIO

import torch
from ninja import ninja_syntax
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
SANITIZE = os.environ.get("SPECDEC_SANITIZE") == "1"

CAPABILITIES = {"baseline": ""}
if platform.machine() == "x86_64":
    CAPABILITIES["avx2"] = "-mavx2 -mfma -mf16c"
    CAPABILITIES["avx512"] = "-mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c"
    CAPABILITIES["avx512bf16"] = CAPABILITIES["avx512"] + " -mavx512bf16"
    CAPABILITIES["amx"] = CAPABILITIES["avx512"] + " -mamx-tile -mamx-bf16"
    if SANITIZE:
        CAPABILITIES["amx"] = f"{CAPABILITIES['avx512']} -include {ROOT}/kernels/cpu/amx_emulation.h"
SINGLE = ("avx512bf16", "amx")  # only for sources that are named after them


class Source(NamedTuple):
    path: Path
    flags: str
    suffix: str = ""  # where a source is compiled more than once
    compiler: str = "$cxx $cxxflags"


class Library(NamedTuple):
    sources: list[Source]
    linker: str = "$cxx"
    link: str = ""


class Npu(NamedTuple):
    """What builds for the NPU."""

    bisheng: str
    cann: Path
    torch_npu: Path  # the package's folder


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
            last = path.stem.rpartition("_")[2]
            if path.name != "dispatch.cpp" and (capability == last if last in SINGLE else capability not in SINGLE):
                yield Source(path, f"{flags} {extra} -DSPECDEC_CAPABILITY={capability}", f".{capability}")


def host_sources(flags: str) -> Iterator[Source]:
    """The NPU's host code and the checks it shares with the CPU backend; `_C.so` defines the schemas."""
    yield from (source for source in sources("bindings/*.cpp", flags) if source.path.stem not in ("library", "schemas"))
    yield from sources("bindings/npu/*.cpp", flags)


def sim_sources() -> Iterator[Source]:
    flags = f"-ffp-contract=off -DSPECDEC_HOSTSIM -DSPECDEC_SIM -I{ROOT}/kernels/hostsim/include"
    yield from (source for source in host_sources(f"-O1 {flags}") if source.path.stem != "device")
    yield Source(ROOT / "bindings/schemas.cpp", f"-O1 {flags}")
    yield from sources("bindings/sim/*.cpp", f"-O1 {flags}")
    yield from sources("bindings/npu/*.asc", f"-O1 {flags} -Wno-unused-parameter -x c++")
    yield from sources("kernels/hostsim/src/*.cpp", f"-O2 {flags}")


def npu_library(npu: Npu) -> Library:
    include = npu.torch_npu / "include"
    host = f"-O2 -isystem {include} -isystem {include}/third_party/acl/inc"
    # Atlas A2 and A3. The objects of .asc sources hold both host and device code: bisheng has to link them.
    bisheng = f"{npu.bisheng} --npu-arch=dav-2201 -fPIC"
    kernels = [
        source._replace(compiler=f"{bisheng} -std=c++17 -O3 -I{ROOT} -x asc")
        for source in sources("bindings/npu/*.asc")
    ]
    return Library(
        [*host_sources(host), *kernels],
        linker=bisheng,
        link=f"-L{npu.torch_npu}/lib -ltorch_npu -L{npu.cann}/lib64 -lascendcl",
    )


def find_npu() -> Npu | str:
    """The tools, or what is missing of them."""
    missing = []
    home = Path(os.environ.get("ASCEND_HOME_PATH", "/usr/local/Ascend/cann"))
    folders = [f"{platform.machine()}-linux/ccec_compiler/bin", "compiler/ccec_compiler/bin", "bin"]
    path = os.pathsep.join([*(str(home / folder) for folder in folders), os.environ.get("PATH", "")])
    bisheng = shutil.which("bisheng", path=path)
    if bisheng is None:
        missing.append(f"bisheng of CANN 9 (looked in {home}, which ASCEND_HOME_PATH sets, and on PATH)")
    spec = importlib.util.find_spec("torch_npu")  # importing it would need a driver
    if spec is None or spec.origin is None:
        missing.append("torch_npu (pip install torch_npu, of torch's version)")
    soc = os.environ.get("SOC_VERSION", "Ascend910B")
    if not soc.lower().startswith(("ascend910b", "ascend910_93")):
        missing.append(
            f"a device that the kernels are written for: Ascend910B* or Ascend910_93*, not SOC_VERSION={soc}"
        )
    if missing:
        return "missing: " + "; ".join(missing)
    assert bisheng and spec and spec.origin
    return Npu(bisheng, home, Path(spec.origin).parent)


def libraries() -> dict[str, Library]:
    found = {"_C": Library(list(cpu_sources()))}
    if os.environ.get("SPECDEC_SIM") == "1":
        found["_sim"] = Library(list(sim_sources()))
    wanted = os.environ.get("SPECDEC_NPU")
    npu = find_npu() if wanted != "0" and not SANITIZE else "not wanted"
    if isinstance(npu, Npu):
        found["_npu"] = npu_library(npu)
    elif wanted == "1":
        raise SystemExit(f"SPECDEC_NPU=1, but the NPU's library cannot be built; {npu}")
    else:
        print(f"specdec_ops: the NPU's library is not built; {npu}")
    return found


def write_ninja(file: TextIO, library: Library, target: Path) -> None:
    torch_dir = Path(torch.__file__).resolve().parent
    flags = [
        "-std=gnu++17 -g1 -fPIC -fopenmp -fvisibility=hidden -fvisibility-inlines-hidden",
        "-Wall -Wextra -Wno-psabi -Wno-unknown-pragmas",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
        f"-I{ROOT} -isystem {torch_dir}/include -isystem {torch_dir}/include/torch/csrc/api/include",
    ]
    # OpenMP comes from the library that torch has already loaded: linking a second one would double the threads.
    link = [f"-shared {library.link} -L{torch_dir}/lib -lc10 -ltorch_cpu -ltorch"]
    sanitizers = ""
    if SANITIZE:
        sanitizers = "-O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined"
        sanitizers += " -DSPECDEC_EMULATE_AMX"
        link.append("-fsanitize=address,undefined")
    writer = ninja_syntax.Writer(file, width=120)  # type: ignore[arg-type]  # it takes any text file
    writer.variable("cxx", " ".join(filter(None, [shutil.which("ccache"), os.environ.get("CXX", "g++")])))
    writer.variable("cxxflags", " ".join(flags))
    writer.rule(
        "compile",
        f"$compiler -MMD -MF $out.d $flags {sanitizers} -c $in -o $out",
        "compile $out",
        depfile="$out.d",
        deps="gcc",
    )
    writer.rule("link", f"{library.linker} $in {' '.join(link)} -o $out", "link $out")
    objects = []
    for source in library.sources:
        objects.append(f"{source.path.relative_to(ROOT)}{source.suffix}.o")
        writer.build(
            [objects[-1]],
            "compile",
            [str(source.path)],
            variables={"compiler": source.compiler, "flags": source.flags},
        )
    writer.build([str(target)], "link", objects)
    writer.default(str(target))


class NinjaBuild(build_ext):
    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        library = ext.name.rpartition(".")[2]
        build = ROOT / "build" / ("sanitize" if SANITIZE else "release") / library
        build.mkdir(parents=True, exist_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(build / "build.ninja", "w") as file:
            write_ninja(file, LIBRARIES[library], target)
        jobs = os.environ.get("MAX_JOBS", str(os.cpu_count() or 1))
        subprocess.check_call(["ninja", "-C", str(build), "-j", jobs])

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split(".")).with_suffix(".so"))  # loaded by torch, not imported: no Python ABI tag


if __name__ == "__main__":
    LIBRARIES = libraries()
    setup(
        ext_modules=[Extension(f"specdec_ops.{library}", []) for library in LIBRARIES],
        cmdclass={"build_ext": NinjaBuild},
    )
