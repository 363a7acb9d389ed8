"""What serves a device: NPUs (PrivateUse1) the Ascend C library, else Triton kernels, which also serve CUDA."""

import importlib
import importlib.util
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

TRITON_DEVICES = ("CUDA", "PrivateUse1")

_library = torch.library.Library("specdec", "IMPL")
_served: set[tuple[str, str]] = set()
why_no_npu: str | None = "they are not in this build"  # the Ascend C kernels; None once they serve


def triton_kernel(name: str) -> Callable[..., Any]:
    """The operator as the dispatcher calls it: the host checks of all backends, then the Triton kernels."""
    check = getattr(torch.ops.specdec_check, name).default

    def call(*args: Any, **kwargs: Any) -> Any:
        check(*args, **kwargs)
        # Imported at the first call: importing Triton takes a second that users of the CPU need not spend.
        return getattr(importlib.import_module("specdec_ops.triton"), name)(*args, **kwargs)

    return call


def load_npu() -> None:
    """Loads the Ascend C kernels, where they were built and torch_npu is installed; `why_no_npu` says why not."""
    global why_no_npu
    library = Path(__file__).with_name("_npu.so")
    if not library.exists():
        return
    if importlib.util.find_spec("torch_npu") is None:
        why_no_npu = "they are in this build, and torch_npu is not installed"
        return
    try:
        importlib.import_module("torch_npu")  # it loads what the library is linked with
        torch.ops.load_library(str(library))
        why_no_npu = None
    except Exception as error:  # whatever it is, the CPU's operators do without
        why_no_npu = f"they are in this build and could not be loaded: {type(error).__name__}: {error}"
        warnings.warn(f"specdec_ops does without its NPU kernels: {why_no_npu}", stacklevel=2)


def register_triton(names: list[str]) -> None:
    """Registers the Triton kernels of these operators, unless Triton is not installed or the device has others."""
    if importlib.util.find_spec("triton") is None:
        return
    for name in names:
        for key in TRITON_DEVICES:
            if not torch._C._dispatch_has_kernel_for_dispatch_key(f"specdec::{name}", key):
                _library.impl(name, triton_kernel(name), key)
                _served.add((name, key))


def triton_serves(name: str, key: str) -> bool:
    """Whether the operator runs on Triton kernels there."""
    return (name, key) in _served
