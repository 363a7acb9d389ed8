"""What is installed, and which kernels each operator runs on each type of device, and why."""

import os
import platform
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from specdec_ops import __all__ as exported
from specdec_ops import devices
from specdec_ops.devices import TRITON_DEVICES, triton_serves

OPERATORS = [name for name in exported if name != "check"]
PACKAGES = ("torch", "torch_npu", "triton", "triton-ascend", "transformers", "safetensors", "gguf", "vllm", "sglang")
DEVICES = {"cpu": "CPU", "npu": "PrivateUse1", "cuda": "CUDA"}  # and their dispatch keys


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def cann() -> str:
    """Where CANN's toolkit is, and its compiler, both looked for where `setup.py` does."""
    variable = os.environ.get("ASCEND_HOME_PATH")
    home = Path(variable or "/usr/local/Ascend/cann")
    folders = [*home.glob("*/ccec_compiler/bin"), home / "bin", *os.get_exec_path()]
    bisheng = shutil.which("bisheng", path=os.pathsep.join(map(str, folders))) or "not found"
    found = "" if home.is_dir() else f"not found, {'ASCEND_HOME_PATH names' if variable else 'looked in'} "
    return f"{found}{home}; its compiler bisheng: {bisheng}"


def present(device: str) -> str:
    if device == "cpu":
        return f"{torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}"
    module = getattr(torch, device, None)
    return f"{module.device_count()} found" if module is not None and module.is_available() else "none found"


def backend(operator: str, device: str) -> tuple[str, str]:
    """The kernels that serve an operator, and why these."""
    key = DEVICES[device]
    if torch._C._dispatch_has_kernel_for_dispatch_key(f"specdec::{operator}", key):
        if triton_serves(operator, key):
            return "Triton", f"{no_native(device)}; Triton is installed"
        return "native", "its kernels are in this build"
    reason = no_native(device)
    if key in TRITON_DEVICES:
        reason += f"; {'triton-ascend' if device == 'npu' else 'triton'} is not installed"
    return "none", reason


def no_native(device: str) -> str:
    return f"no native kernels: {devices.why_no_npu if device == 'npu' else 'they are not in this build'}"


def report() -> Iterator[str]:
    yield f"Python {platform.python_version()}, {platform.machine()}"
    for package in PACKAGES:
        yield f"{package}: {installed(package) or 'not installed'}"
    yield f"CANN: {cann()}"
    for device in DEVICES:
        yield ""
        yield f"on {device} ({present(device)}):"
        serving: dict[tuple[str, str], list[str]] = {}
        for operator in OPERATORS:
            serving.setdefault(backend(operator, device), []).append(operator)
        for (kernels, reason), operators in serving.items():
            which = "all operators" if len(operators) == len(OPERATORS) else ", ".join(operators)
            yield f"  {kernels}: {which}; {reason}"
