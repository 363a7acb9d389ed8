"""Random numbers that are the same on every backend."""

import torch
from torch import Tensor


def philox_uniform(seeds: Tensor, offsets: Tensor, n: int, stream: int) -> Tensor:
    """Uniform numbers in [0, 1) from Philox4x32-10, the same bits on every backend.

    Lane `i` of request `b` is word `i % 4` of the block with key `seeds[b]` and counter
    `(offsets[b] low, offsets[b] high, stream, i // 4)`, made a float as `(word >> 8) * 2**-24`.

    Args:
        seeds: int64 `[B]`, one key a request.
        offsets: int64 `[B]`, by convention the absolute position of the request's root.
        n: numbers a request.
        stream: which use of the numbers this is, 0 to 2**32 - 1; uses that must be independent take different streams.

    Returns:
        float32 `[B, n]`.

    Raises:
        ValueError: an argument has the wrong shape, dtype, device or range.

    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    return torch.ops.specdec.philox_uniform.default(seeds, offsets, n, stream)


@torch.library.register_fake("specdec::philox_uniform")
def _(seeds: Tensor, offsets: Tensor, n: int, stream: int) -> Tensor:
    return seeds.new_empty((seeds.shape[0], n), dtype=torch.float32)
