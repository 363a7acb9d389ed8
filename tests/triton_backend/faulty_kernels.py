"""Kernels with the faults that the lowering tests must find."""

import triton
import triton.language as tl


@triton.jit
def shift_kernel(x, amounts, out, n, BLOCK: tl.constexpr):
    """Shifts by an amount an element: the vector unit shifts a block by one amount, so this is a scalar loop."""
    lane = tl.arange(0, BLOCK)
    for i in range(tl.program_id(0), n, tl.num_programs(0)):
        shifted = tl.load(x + i * BLOCK + lane) >> tl.load(amounts + i * BLOCK + lane)
        tl.store(out + i * BLOCK + lane, shifted)


@triton.jit
def copy_kernel(x, out, n, BLOCK: tl.constexpr):
    """Sound as long as two buffers of BLOCK elements fit, one being filled while the other is written."""
    lane = tl.arange(0, BLOCK)
    for i in range(tl.program_id(0), n, tl.num_programs(0)):
        tl.store(out + i * BLOCK + lane, tl.load(x + i * BLOCK + lane) * 2)
