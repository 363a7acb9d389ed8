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
def branch_kernel(x, out, n, BLOCK: tl.constexpr):
    """Both branches yield a block, one of them from a loop: it gets a stride, and instructions on one element each."""
    lane = tl.arange(0, BLOCK)
    block = tl.zeros([BLOCK], tl.float32)
    for i in range(0, n):
        if tl.load(x + i) > 0:
            block = tl.where(lane == i, 1.0, block)
        else:
            for j in range(0, i):
                block = tl.where(lane == j, 0.0, block)
    tl.store(out + lane, block)


@triton.jit
def reshape_kernel(x, out, n, BLOCK: tl.constexpr):
    """The comparison and the selection, too, are made row by row."""
    lane = tl.arange(0, BLOCK)
    row = tl.arange(0, BLOCK // 4)
    for i in range(tl.program_id(0), n, tl.num_programs(0)):
        block = tl.load(x + i * BLOCK + lane)
        rows = tl.reshape(tl.where(block > 0, block, 1.0), [BLOCK // 4, 4])
        tl.store(out + row[:, None] * n + tl.arange(0, 4)[None, :], rows)


@triton.jit
def scatter_kernel(x, out, n, BLOCK: tl.constexpr):
    """For the store every element is put at an address of 32 bytes, before the comparison and the selection."""
    lane = tl.arange(0, BLOCK)
    for i in range(tl.program_id(0), n, tl.num_programs(0)):
        block = tl.load(x + i * BLOCK + lane)
        tl.store(out + lane * n, tl.where(block > 0, block, 1.0))


@triton.jit
def copy_kernel(x, out, n, BLOCK: tl.constexpr):
    """Sound as long as two buffers of BLOCK elements fit, one being filled while the other is written."""
    lane = tl.arange(0, BLOCK)
    for i in range(tl.program_id(0), n, tl.num_programs(0)):
        tl.store(out + i * BLOCK + lane, tl.load(x + i * BLOCK + lane) * 2)
