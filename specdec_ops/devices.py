"""Which devices the Triton kernels serve: CUDA, and NPUs (PrivateUse1) where the native library has no kernels."""

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import torch

TRITON_DEVICES = ("CUDA", "PrivateUse1")

_library = torch.library.Library("specdec", "IMPL")
_served: set[tuple[str, str]] = set()


def _kernel(name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        # Imported at the first call: importing Triton takes a second that users of the CPU need not spend.
        return getattr(importlib.import_module("specdec_ops.triton"), name)(*args, **kwargs)

    return call


def register_triton(names: list[str]) -> None:
    """Registers the Triton kernels of these operators, unless Triton is not installed."""
    if importlib.util.find_spec("triton") is None:
        return
    for name in names:
        for key in TRITON_DEVICES:
            if not torch._C._dispatch_has_kernel_for_dispatch_key(f"specdec::{name}", key):
                _library.impl(name, _kernel(name), key)
                _served.add((name, key))


def triton_serves(name: str, key: str) -> bool:
    """Whether the operator runs on Triton kernels there."""
    return (name, key) in _served
