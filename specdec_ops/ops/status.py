"""The bits of the operators' `status` outputs: what was wrong with data that only the device sees."""

import torch
from torch import Tensor

NOT_FINITE = 1
NO_FINITE_LOGIT = 2
TOKEN_OUT_OF_RANGE = 4
MALFORMED_TREE = 8
CACHE_EXHAUSTED = 16

_MEANINGS = {
    NOT_FINITE: "a row of logits holds a NaN or +inf",
    NO_FINITE_LOGIT: "a row of logits has no finite entry",
    TOKEN_OUT_OF_RANGE: "a draft token is outside the vocabulary",
    MALFORMED_TREE: "cu_nodes or parents do not describe a tree",
    CACHE_EXHAUSTED: "no cache block is free",
}


def _meaning(bits: int) -> str:
    meanings = [meaning for bit, meaning in _MEANINGS.items() if bits & bit]
    unknown = bits & ~sum(_MEANINGS)
    return ", ".join(meanings + ([f"unknown bits {unknown:#x}"] if unknown else []))


def check(status: Tensor) -> None:
    """Raise if an operator flagged a request. Reads `status` back, so it waits for the device.

    Args:
        status: int32 `[B]`, from `verify_chain`, `verify_tree`, `sample` or `blocks_reserve`.

    Raises:
        ValueError: `status` has another shape or dtype.
        RuntimeError: a bit is set; the message names each flagged request and what its bits mean.
    """
    if status.ndim != 1 or status.dtype != torch.int32:
        raise ValueError(f"status: expected int32 [B], got {status.dtype} {list(status.shape)}")
    flagged = [f"request {request}: {_meaning(bits)}" for request, bits in enumerate(status.tolist()) if bits]
    if flagged:
        raise RuntimeError("bad data: " + "; ".join(flagged))
