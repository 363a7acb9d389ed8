"""Other people's models, layouts and generate functions."""

import torch
from torch import Tensor


def cu_nodes_of_equal(batch: int, nodes: int, device: torch.device) -> Tensor:
    """`cu_nodes`, int32 `[batch + 1]`, of requests of `nodes` nodes each."""
    return torch.arange(batch + 1, dtype=torch.int32, device=device) * nodes
