"""Other people's models, layouts and generate functions."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

ANY = object()  # in place of a value: whichever an argument has, the result is the same


def cu_nodes_of_equal(batch: int, nodes: int, device: torch.device) -> Tensor:
    """`cu_nodes`, int32 `[batch + 1]`, of requests of `nodes` nodes each."""
    return torch.arange(batch + 1, dtype=torch.int32, device=device) * nodes


def pack_bits(sees: Tensor) -> Tensor:
    """Bool `[N, 64 * W]` as the words of a mask, int64 `[N, W]`."""
    return (sees.unflatten(1, (-1, 64)).long() << torch.arange(64, device=sees.device)).sum(-1)


def check_not_served(given: Mapping[str, Any], neutral: Mapping[str, Any]) -> None:
    """Accept the arguments of a peer's call that ask for nothing: None, or the value that `neutral` gives for the name.

    Raises:
        TypeError: an argument that the peer does not have.
        ValueError: an argument that asks for what is not served here.
    """
    for name, value in given.items():
        if name not in neutral:
            raise TypeError(f"{name}: no such argument")
        if value is None or neutral[name] is ANY:
            continue
        if isinstance(value, Tensor) or value != neutral[name]:
            got = "a tensor" if isinstance(value, Tensor) else value
            raise ValueError(f"{name}: expected {neutral[name]}, nothing else is served; got {got}")
