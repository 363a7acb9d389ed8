"""Workloads shared by the benchmarks."""

import math

import torch
from torch import Tensor


def target_logits(rows: int, vocab: int) -> Tensor:
    """Normal logits with 32 peaks a row whose probabilities fall by 0.7 from about 0.3: a confident model's rows."""
    logits = torch.randn(rows, vocab).mul_(2)
    peaks = math.log(vocab) + 4.5 - 0.35 * torch.arange(32)
    ids = torch.randint(vocab, (rows, 32))
    return logits.scatter_(1, ids, peaks.expand(rows, 32))


def draft_logits(target: Tensor) -> Tensor:
    """A draft model that knows the target with an error, for an acceptance of about 0.7."""
    return target + 0.75 * torch.randn_like(target)


def random_tree(nodes: int) -> list[int]:
    """Parents of a tree with a depth of about 8 at 64 nodes: a node hangs below one of the few just before it."""
    window = max(1, nodes // 8)
    return [-1] + [int(torch.randint(max(0, i - window), i, ())) for i in range(1, nodes)]


def ancestors(parents: list[int]) -> Tensor:
    """Bool `[nodes, nodes]`: row `i` marks node `i` and its ancestors."""
    mask = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            mask[node] |= mask[parent]
    return mask


def pack_mask(mask: Tensor) -> Tensor:
    """Bool `[nodes, columns]` to the int64 words that `tree_attention` takes."""
    words = math.ceil(mask.shape[1] / 64)
    bits = torch.zeros(mask.shape[0], words * 64, dtype=torch.bool)
    bits[:, : mask.shape[1]] = mask
    weights = torch.ones(64, dtype=torch.int64) << torch.arange(64)
    return (bits.view(-1, words, 64) * weights).sum(-1)
