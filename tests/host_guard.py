"""A guard under which no device data may reach the host.

On a CPU it cannot tell a copy to a tensor on the host (`copy_`, `to(device)`) from one on the device, and takes only
the string "cpu" for the host.
"""

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
OPERATORS = {
    "_local_scalar_dense",
    "item",
    "nonzero",
    "masked_select",
    "equal",
    "allclose",
    "is_nonzero",
    "unique",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "unique_dim_consecutive",
    "bincount",
}
# Functions that make a tensor of Python numbers: of tensors in a list they read each.
FACTORIES = {"tensor", "as_tensor", "new_tensor"}


def _holds_tensors(data: Any) -> bool:
    return isinstance(data, list | tuple) and any(isinstance(x, torch.Tensor) or _holds_tensors(x) for x in data)


def _searches_mask(func: Any, args: Any) -> bool:
    """Whether an index that is a mask is made one of places. A single number is put there without (`masked_fill`)."""
    if func.overloadpacket not in (torch.ops.aten.index, torch.ops.aten.index_put, torch.ops.aten.index_put_):
        return False
    puts_number = len(args) > 2 and args[2].ndim == 0
    return not puts_number and any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1])


class _Functions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        to_host = name == "to" and "cpu" in (*(x for x in args if isinstance(x, str)), (kwargs or {}).get("device"))
        if name in METHODS or to_host or (name in FACTORIES and any(_holds_tensors(x) for x in args)):
            raise HostRead(f"Tensor.{name}")
        return func(*args, **(kwargs or {}))


class _Operators(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        sums = name == "repeat_interleave" and (kwargs or {}).get("output_size") is None
        if name in OPERATORS or sums or _searches_mask(func, args):
            raise HostRead(f"aten.{name}")
        return func(*args, **(kwargs or {}))


@contextmanager
def no_host_reads() -> Iterator[None]:
    with _Functions(), _Operators():
        yield
