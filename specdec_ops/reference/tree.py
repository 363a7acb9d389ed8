import math
from itertools import accumulate, pairwise

import torch
from torch import Tensor


def request_rows(cu_nodes: Tensor, num_rows: int) -> list[range]:
    """The rows of each request; bounds outside `0..num_rows` or below their predecessors are moved there."""
    bounds = list(accumulate((min(max(bound, 0), num_rows) for bound in cu_nodes.tolist()), max))
    return [range(begin, end) for begin, end in pairwise(bounds)]


def tree_mask(parents: Tensor, cu_nodes: Tensor, max_nodes: int) -> tuple[Tensor, Tensor]:
    masks, depths = [0] * len(parents), [0] * len(parents)  # a mask is a Python int of any width
    parent_of = parents.tolist()
    for rows in request_rows(cu_nodes, len(parents)):
        for i, row in enumerate(rows[:max_nodes]):
            parent = parent_of[row]
            if 0 <= parent < i:
                masks[row] = masks[rows[parent]]
                depths[row] = depths[rows[parent]] + 1
            masks[row] |= 1 << i
    words = -(-max_nodes // 64)
    signed = [[_signed(mask >> 64 * w) for w in range(words)] for mask in masks]
    mask = torch.tensor(signed, dtype=torch.int64, device=parents.device).reshape(len(parents), words)
    return mask, torch.tensor(depths, dtype=torch.int32, device=parents.device)


def _signed(bits: int) -> int:
    """The low 64 bits as an int64."""
    return (bits + (1 << 63)) % (1 << 64) - (1 << 63)


def tree_select(tokens: Tensor, scores: Tensor, parents_in: Tensor, num_nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    out_tokens: list[int] = []
    out_parents: list[int] = []
    cu_nodes = [0]
    for row_tokens, row_scores, row_parents in zip(tokens.tolist(), scores.tolist(), parents_in.tolist(), strict=True):
        effective = {0: math.inf}  # of the candidates
        for i in range(1, len(row_tokens)):
            score, parent = row_scores[i], row_parents[i]
            if row_tokens[i] >= 0 and score > -math.inf and 0 <= parent < i and parent in effective:
                effective[i] = min(score, effective[parent])
        # The root leads: none is better, and it has the lowest index.
        kept = sorted(sorted(effective, key=lambda i: (-effective[i], i))[:num_nodes])
        place = {i: j for j, i in enumerate(kept)}
        out_tokens += [row_tokens[i] for i in kept]
        out_parents += [place[row_parents[i]] if i else -1 for i in kept]
        cu_nodes.append(len(out_tokens))
    left = [-1] * (len(tokens) * num_nodes - len(out_tokens))
    return (
        torch.tensor(out_tokens + left, dtype=torch.int64, device=tokens.device),
        torch.tensor(out_parents + left, dtype=torch.int32, device=tokens.device),
        torch.tensor(cu_nodes, dtype=torch.int32, device=tokens.device),
    )
