"""A guard under which no device data may reach the host."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class HostRead(AssertionError):
    pass


# Methods of Tensor that give a Python value or a host copy: on a CPU most of these never reach the dispatcher.
METHODS = {
    "item",
    "tolist",
    "cpu",
    "numpy",
    "__array__",
    "__bool__",
    "__int__",
    "__float__",
    "__index__",
    "__contains__",
}
# Operators that read values, or whose output's shape depends on them.
OPERATORS = {"_local_scalar_dense", "item", "nonzero", "masked_select", "equal", "is_nonzero", "unique", "_unique2"}


class _Functions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in METHODS:
            raise HostRead(f"Tensor.{func.__name__}")
        return func(*args, **(kwargs or {}))


class _Operators(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        masked = func is torch.ops.aten.index.Tensor and any(x is not None and x.dtype == torch.bool for x in args[1])
        if masked or func.overloadpacket.__name__ in OPERATORS:
            raise HostRead(f"aten.{func.overloadpacket.__name__}")
        return func(*args, **(kwargs or {}))


@contextmanager
def no_host_reads() -> Iterator[None]:
    with _Functions(), _Operators():
        yield
