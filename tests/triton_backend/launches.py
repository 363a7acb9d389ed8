"""What a launch compiles, and the tally of what each layer has shown to work."""

import hashlib
import importlib
import pkgutil
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Specialization:
    """One kernel as one launch compiles it: parameter types, and the values that are constants."""

    kernel: Any = field(hash=False, compare=False)
    name: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        types = " ".join(type.replace("*", "p") for _, type in self.signature if type.startswith("*"))
        return f"{self.name}[{' '.join(f'{name}={value}' for name, value in self.constants)}; {types}]"

    @property
    def key(self) -> str:
        return f"{self.name}_{hashlib.sha256(repr((self.signature, self.constants)).encode()).hexdigest()[:12]}"


def _type_of(value: Any) -> str:
    if isinstance(value, Tensor):
        names = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
        return "*" + names.get(value.dtype, str(value.dtype).removeprefix("torch.int").join(("i", "")))
    if isinstance(value, float):
        return "fp32"
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def specialize(kernel: Any, args: tuple[Any, ...], constants: dict[str, Any]) -> Specialization:
    named = dict(zip(kernel.arg_names, args, strict=False))
    signature = {name: _type_of(value) for name, value in named.items() if value is not None}
    absent = {name: None for name, value in named.items() if value is None}
    return Specialization(kernel, kernel.__name__, tuple(signature.items()), tuple({**absent, **constants}.items()))


def kernel_names() -> set[str]:
    """Of all kernels of the package."""
    package = importlib.import_module("specdec_ops.triton")
    modules = [
        importlib.import_module(f"specdec_ops.triton.{module.name}")
        for module in pkgutil.iter_modules(package.__path__)
    ]
    return {name for module in modules for name in vars(module) if name.endswith("_kernel")}


shown: set[tuple[Specialization, str]] = set()  # and the target: a device, the interpreter or native code


def tally() -> str:
    ours = [(specialization, target) for specialization, target in shown if specialization.name in kernel_names()]
    kernels, configurations = {specialization.name for specialization, _ in ours}, {pair[0] for pair in ours}
    targets = sorted({target for _, target in ours})
    return (
        f"{len(kernels)} kernels, {len(configurations)} configurations, {len(targets)} targets ({', '.join(targets)}): "
        f"{len(ours)} combinations"
    )
