"""How kernels are launched: every launch of this package goes through `launch`."""

from functools import cache
from typing import Any, NamedTuple

import torch
import triton
from triton.runtime.jit import JITFunction


class Device(NamedTuple):
    vector_cores: int  # programs that run at once for a kernel without matrix products
    cube_cores: int  # and for one with
    unified_buffer: int  # bytes that the blocks of one program may use at once

    def vector_block(self, live: int, itemsize: int = 4) -> int:
        """Elements a block: `live` blocks are alive at once, each with a second buffer for the transfer under way."""
        return 1 << (self.unified_buffer // (2 * live * itemsize)).bit_length() - 1


@cache
def _device(kind: str, index: int | None) -> Device:
    if kind == "npu":
        properties = triton.runtime.driver.active.utils.get_device_properties(index)
        return Device(properties["num_vectorcore"], properties["num_aicore"], 192 * 1024)
    if kind == "cuda":
        programs = torch.cuda.get_device_properties(index).multi_processor_count * 4
        return Device(programs, programs, 192 * 1024)
    return Device(vector_cores=3, cube_cores=2, unified_buffer=16 * 1024)  # in tests: little, so that loops loop


def device_of(tensor: torch.Tensor) -> Device:
    return _device(tensor.device.type, tensor.device.index)


def launch(kernel: JITFunction, programs: int, *args: Any, **constants: Any) -> None:
    """Runs `kernel` on a one-dimensional grid; nothing to do is not an error."""
    if programs > 0:
        kernel[(programs,)](*args, **constants)
