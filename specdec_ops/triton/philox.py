import torch
import triton
import triton.language as tl
from torch import Tensor

from specdec_ops.triton.runtime import device_of, launch


@triton.jit
def _multiply_high(low: tl.constexpr, high: tl.constexpr, x):
    """The upper 32 bits of the unsigned product, from 16-bit halves: the vector unit multiplies 32 bits."""
    x_low = x & 0xFFFF
    x_high = (x >> 16) & 0xFFFF
    cross_a = x_low * high
    cross_b = x_high * low
    middle = ((x_low * low >> 16) & 0xFFFF) + (cross_a & 0xFFFF) + (cross_b & 0xFFFF)
    return x_high * high + ((cross_a >> 16) & 0xFFFF) + ((cross_b >> 16) & 0xFFFF) + ((middle >> 16) & 0xFFFF)


@triton.jit
def philox4x32_10(c0, c1, c2, c3, k0, k1):
    """Ten rounds on int32 tensors of one shape, which hold the unsigned words' bits; keys are scalars."""
    for _ in tl.static_range(10):
        high_0 = _multiply_high(0x1F53, 0xD251, c0)
        high_2 = _multiply_high(0x8D57, 0xCD9E, c2)
        low_0 = c0 * -766435501  # 0xD2511F53
        low_2 = c2 * -845247145  # 0xCD9E8D57
        c0 = high_2 ^ c1 ^ k0
        c1 = low_2
        c2 = high_0 ^ c3 ^ k1
        c3 = low_0
        k0 = k0 - 1640531527  # + 0x9E3779B9
        k1 = k1 - 1150833019  # + 0xBB67AE85
    return c0, c1, c2, c3


@triton.jit
def philox_uniform_kernel(seeds, offsets, out, n, stream, tasks, chunks, BLOCK: tl.constexpr):
    # A lane computes the block of its quad and keeps one word of four: n is small, and stores stay contiguous.
    for task in range(tl.program_id(0), tasks, tl.num_programs(0)):
        b = task // chunks
        lane = (task % chunks) * BLOCK + tl.arange(0, BLOCK)
        seed = tl.load(seeds + b)
        offset = tl.load(offsets + b)
        zero = tl.zeros([BLOCK], tl.int32)
        w0, w1, w2, w3 = philox4x32_10(
            zero + offset.to(tl.int32),
            zero + (offset >> 32).to(tl.int32),
            zero + stream,
            lane >> 2,
            seed.to(tl.int32),
            (seed >> 32).to(tl.int32),
        )
        which = lane & 3
        word = tl.where(which == 0, w0, tl.where(which == 1, w1, tl.where(which == 2, w2, w3)))
        uniform = ((word >> 8) & 0xFFFFFF).to(tl.float32) * 5.9604644775390625e-8  # 2**-24
        tl.store(out + tl.cast(b, tl.int64) * n + lane, uniform, mask=lane < n)


def philox_uniform(seeds: Tensor, offsets: Tensor, n: int, stream: int) -> Tensor:
    out = torch.empty((seeds.shape[0], n), dtype=torch.float32, device=seeds.device)
    block = min(triton.next_power_of_2(max(n, 16)), 512)
    chunks = triton.cdiv(n, block)
    tasks = seeds.shape[0] * chunks
    signed_stream = stream - (1 << 32) if stream >= 1 << 31 else stream
    programs = min(tasks, device_of(seeds).vector_cores)
    launch(philox_uniform_kernel, programs, seeds, offsets, out, n, signed_stream, tasks, chunks, BLOCK=block)
    return out
