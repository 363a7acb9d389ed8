"""From a row of logits to the distribution that is sampled and verified."""

from typing import Any

import torch
from torch import Tensor

from specdec_ops.ops.status import NO_FINITE_LOGIT, NOT_FINITE


def row_status(logits: Tensor) -> int:
    if (logits.isnan() | (logits == torch.inf)).any():
        return NOT_FINITE
    return 0 if logits.isfinite().any() else NO_FINITE_LOGIT


def one_hot(token: int, vocab: int) -> Tensor:
    p = torch.zeros(vocab, dtype=torch.float64)
    p[token] = 1
    return p


def argmax(logits: Tensor) -> int:
    """The lowest id among the largest finite logits; 0 where there are none."""
    x = torch.where(logits.isfinite(), logits, -torch.inf)
    return int((x == x.max()).nonzero()[0])


def processed(
    logits: Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> Tensor:
    """float64 `[V]`: softmax after temperature, top-k, top-p and min-p, in this order.

    Temperature 0 is greedy. A row with a NaN, a +inf or no finite logit is taken as greedy too, so that whatever it
    holds gives a distribution; the caller finds its status with `row_status`.
    """
    if not temperature > 0 or row_status(logits):
        return one_hot(argmax(logits), logits.numel())
    x = logits.double()
    x = (x - x.max()) / min(temperature, torch.finfo(x.dtype).max)  # -inf / inf would be NaN
    if 0 < top_k < x.numel():
        x = _at_least(x, x.topk(top_k).values[-1])
    if top_p < 1:
        # A token stays while the tokens before it, in order of probability, hold less than top_p.
        ordered, p = x.sort(descending=True).values, x.softmax(0).sort(descending=True).values
        kept = int(((p.cumsum(0) - p) < top_p).sum())
        x = _at_least(x, ordered[max(kept, 1) - 1])
    if min_p > 0:
        x = torch.where(x.exp() >= min(min_p, 1.0), x, -torch.inf)  # exp(x) is relative to the largest probability
    return x.softmax(0)


def _at_least(x: Tensor, threshold: Tensor) -> Tensor:
    """Ties at the threshold stay."""
    return torch.where(x >= threshold, x, -torch.inf)


def draw(weights: Tensor, uniform: float) -> int:
    """Inverse CDF in token order: the first id whose cumulative mass exceeds `uniform` times the total.

    Where rounding runs past the end it is the last id with mass; an id without mass is never drawn.
    """
    cumulative = weights.cumsum(0)
    ids = ((cumulative > uniform * cumulative[-1]) & (weights > 0)).nonzero()
    return int(ids[0] if len(ids) else weights.nonzero()[-1])


def filters_of(
    b: int, temperature: Tensor | None, top_k: Tensor | None, top_p: Tensor | None, min_p: Tensor | None
) -> dict[str, Any]:
    """Request `b`'s arguments of `processed`; what is absent keeps its default, which is off."""
    given = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    return {name: values[b].item() for name, values in given.items() if values is not None}
