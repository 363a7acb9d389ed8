"""Candidate trees: ancestor bitmasks and the choice of the nodes worth verifying."""

import torch
from torch import Tensor


def tree_mask(parents: Tensor, cu_nodes: Tensor, max_nodes: int) -> tuple[Tensor, Tensor]:
    """What every node of every tree may see of its own tree, one bit a node, and how deep it lies.

    A node whose parent is not before it is a root of its own. A node past the first `max_nodes` of its request has no
    bit and no row: its mask and depth are 0, as are those of rows that belong to no request.

    Args:
        parents: int32 `[N]`, index inside the request, -1 for a root.
        cu_nodes: int32 `[B+1]`: the rows of request `b` are `cu_nodes[b]:cu_nodes[b+1]`.
        max_nodes: upper bound of the nodes of a request, at least 1.

    Returns:
        mask: int64 `[N, ceil(max_nodes / 64)]`: bit `j % 64` of word `j // 64` of row `i` is set iff node `j` is `i` or
            its ancestor.
        depth: int32 `[N]`: 0 for a root, else one more than the parent's.

    Raises:
        ValueError: an argument has the wrong shape, dtype, device, layout or range.

    Source: Miao et al., "SpecInfer", 2305.09781.
    """
    return torch.ops.specdec.tree_mask.default(parents, cu_nodes, max_nodes)


def tree_select(tokens: Tensor, scores: Tensor, parents_in: Tensor, num_nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    """EAGLE-2's rerank: of an expanded tree keep the root and the `num_nodes - 1` nodes most likely to be accepted.

    A node counts with its own score or its parent's if that is less, so that the ancestors of a kept node are kept;
    a tie goes to the lower index. A node with a negative token, a score of NaN or -inf, or a parent not before it is
    no candidate, nor is anything below it. The root is always kept and its score is not read.

    Args:
        tokens: int64 `[B, M]`, column 0 the root.
        scores: float32 `[B, M]`, log-probability of the path from the root to the node.
        parents_in: int32 `[B, M]`, index inside the request, parents before children; -1 for the root.
        num_nodes: nodes to keep a request, the root included; at least 1.

    Returns:
        tokens: int64 `[B * num_nodes]`, the kept nodes in the order they came, requests packed one after another; -1 in
            the rows left where requests had fewer candidates.
        parents: int32 `[B * num_nodes]`, index inside the request's kept nodes; -1 for a root and in rows left.
        cu_nodes: int32 `[B+1]`: the rows of request `b` are `cu_nodes[b]:cu_nodes[b+1]`.

    Raises:
        ValueError: an argument has the wrong shape, dtype, device, layout or range; on an NPU, M is above 4096.

    Source: Li et al., "EAGLE-2", 2406.16858, section 4.2.
    """
    return torch.ops.specdec.tree_select.default(tokens, scores, parents_in, num_nodes)


@torch.library.register_fake("specdec::tree_mask")
def _(parents: Tensor, cu_nodes: Tensor, max_nodes: int) -> tuple[Tensor, Tensor]:
    mask = parents.new_empty((parents.shape[0], (max_nodes + 63) // 64), dtype=torch.int64)
    return mask, torch.empty_like(parents)


@torch.library.register_fake("specdec::tree_select")
def _(tokens: Tensor, scores: Tensor, parents_in: Tensor, num_nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    batch = tokens.shape[0]
    rows = batch * num_nodes
    return tokens.new_empty(rows), parents_in.new_empty(rows), parents_in.new_empty(batch + 1)
