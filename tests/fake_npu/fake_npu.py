"""An NPU without hardware, for the code in `bindings/npu`.

The binding is compiled and linked by setup.py's own commands against the headers and the library of torch_npu's wheel,
with a stub in bisheng's place that links the kernels' simulator. It then runs over a PrivateUse1 backend of our own
(`torch_npu.cpp`), in whose name of `libtorch_npu.so` the loader finds what the binding was linked with. Nothing of
torch_npu is installed or run.
"""

import ctypes
import importlib.util
import platform
import subprocess
import sys
import types
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "fake_npu"


class Unavailable(Exception):
    """Something that the fake NPU is built from is missing; the message says what."""


def torch_npu() -> Path:
    """The unpacked headers and library of the torch_npu that belongs to this torch, downloaded at the first call."""
    release = ".".join(torch.__version__.split(".")[:2])
    folder = ROOT / "build" / "torch_npu" / f"{release}-{platform.python_version_tuple()[1]}"
    package = folder / "torch_npu"
    if not (package / "lib" / "libtorch_npu.so").exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "-d",
            str(folder),
            f"torch_npu=={release}.*",
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise Unavailable(f"torch_npu's wheel cannot be downloaded: {done.stderr.strip()}")
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.startswith("torch_npu/include/")]
            archive.extractall(folder, [*names, "torch_npu/lib/libtorch_npu.so"])
        wheel.unlink()
    return package


def setup_py() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("specdec_setup", ROOT / "setup.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["specdec_setup"] = module
    spec.loader.exec_module(module)
    return module


def ninja(setup: types.ModuleType, library: Any, target: Path) -> Path:
    folder = BUILD / "objects" / target.stem
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "build.ninja", "w") as file:
        setup.write_ninja(file, library, target)
    done = subprocess.run(["ninja", "-C", str(folder)], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stdout + done.stderr)
    return target


def build() -> list[Path]:
    """The libraries, in the order in which they have to be loaded; the binding is the last."""
    simulator = sorted((ROOT / "build/release/_sim/kernels/hostsim/src").glob("*.o"))
    if not simulator:
        raise Unavailable("the simulator is not built (SPECDEC_SIM=1 builds it)")
    setup, package = setup_py(), torch_npu()
    flags = f"-O1 -fvisibility=default -DSPECDEC_HOSTSIM -I{ROOT}/kernels/hostsim/include -Wno-unused-parameter"
    headers = f"-isystem {package}/include -isystem {package}/include/third_party/acl/inc"
    cann, backend, launch = (
        setup.Source(HERE / f"{name}.cpp", f"{flags} {headers}") for name in ("cann", "torch_npu", "launch")
    )
    binding = setup.npu_library(setup.Npu(str(HERE / "bisheng"), BUILD, package))
    # A name that neither the wheel's library nor CANN's stand-in has is an error of the linker.
    link = " ".join([binding.link, *map(str, simulator), "-Wl,--no-undefined"])
    libraries = {
        "lib64/libascendcl.so": setup.Library([cann], link="-Wl,-soname,libascendcl.so"),
        "libtorch_npu.so": setup.Library(
            [backend], link=f"-Wl,-soname,libtorch_npu.so -L{BUILD}/lib64 -lascendcl -Wl,--no-undefined"
        ),
        "_npu.so": setup.Library([*binding.sources, launch], binding.linker, link),
    }
    (BUILD / "lib64").mkdir(parents=True, exist_ok=True)
    return [ninja(setup, library, BUILD / name) for name, library in libraries.items()]


def install() -> None:
    """Makes `npu` a device of this process, for good."""
    cann, backend, binding = build()
    ctypes.CDLL(str(cann))
    torch.ops.load_library(str(backend))
    torch.utils.rename_privateuse1_backend("npu")
    module = types.ModuleType("torch.npu")
    functions = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_is_in_bad_fork": lambda: False,
        "synchronize": torch.accelerator.synchronize,
        "manual_seed_all": lambda seed: None,
        "get_rng_state": lambda device=None: torch.empty(0),
        "set_rng_state": lambda state, device=None: None,
        "device_count": lambda: 2,
        "current_device": torch.ops.fake_npu.current_device,
        "set_device": lambda device: torch.ops.fake_npu.set_device(torch.device("npu", device).index),
    }
    for name, function in functions.items():
        setattr(module, name, function)
    torch._register_device_module("npu", module)
    torch.utils.generate_methods_for_privateuse1_backend()
    torch.ops.load_library(str(binding))


@contextmanager
def no_host_reads() -> Iterator[None]:
    """Raises where the host reads device data."""
    torch.ops.fake_npu.forbid_host_reads(True)
    try:
        yield
    finally:
        torch.ops.fake_npu.forbid_host_reads(False)


class Launch(NamedTuple):
    kernel: str
    cores: int
    device: int
    stream: int
    gm_read: int  # bytes
    gm_written: int
    macs: int


def take_launches() -> list[Launch]:
    """What ran since the last call."""
    kernels, numbers = torch.ops.fake_npu.take_launches()
    return [Launch(kernel, *of_launch) for kernel, of_launch in zip(kernels, numbers, strict=True)]
