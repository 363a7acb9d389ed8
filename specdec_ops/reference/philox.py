import torch
from torch import Tensor

_MASK = 0xFFFFFFFF


def philox4x32_10(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & _MASK, (a >> 32) ^ c3 ^ k1, a & _MASK
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return c0, c1, c2, c3


def philox_uniform(seeds: Tensor, offsets: Tensor, n: int, stream: int) -> Tensor:
    rows = []
    for seed, offset in zip(seeds.tolist(), offsets.tolist(), strict=True):
        words: list[int] = []
        for quad in range(-(-n // 4)):
            counter = (offset & _MASK, (offset >> 32) & _MASK, stream, quad)
            words += philox4x32_10(counter, (seed & _MASK, (seed >> 32) & _MASK))
        rows.append([(word >> 8) * 2.0**-24 for word in words[:n]])
    return torch.tensor(rows, dtype=torch.float32, device=seeds.device).reshape(len(rows), n)
