"""Draws from rows of logits."""

import torch
from torch import Tensor


def sample(
    logits: Tensor,
    uniforms: Tensor,
    *,
    temperature: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw one token a row from its processed distribution.

    The processed distribution is the softmax of `logits / temperature` after top-k, then top-p on what top-k left
    renormalised, then min-p relative to the largest probability; ties at a threshold are kept. The token is the first
    id whose cumulative mass exceeds `uniform * total`; an id without mass is never drawn.

    Args:
        logits: float32, bfloat16 or float16 `[R, V]`; rows may lie any distance apart.
        uniforms: float32 `[R]`, in [0, 1).
        temperature: float32 `[R]`, default 1. 0 is greedy: the largest logit, the lowest id on a tie.
        top_k: int32 `[R]`, off where <= 0 or >= V.
        top_p: float32 `[R]`, off where >= 1.
        min_p: float32 `[R]`, off where <= 0.

    Returns:
        token: int64 `[R]`.
        logprob: float32 `[R]`, natural log of the token's processed probability; 0 where the row is greedy or flagged.
        status: int32 `[R]`, bits 1 (a NaN or +inf in the row) and 2 (no finite logit), see `check`. The token of a
            flagged row is the largest finite logit's, 0 if there is none.

    Raises:
        ValueError: an argument has the wrong shape, dtype, device or layout; on an NPU, V is above 2097152.
    """
    return torch.ops.specdec.sample.default(
        logits, uniforms, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p
    )


@torch.library.register_fake("specdec::sample")
def _(
    logits: Tensor,
    uniforms: Tensor,
    *,
    temperature: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    rows = logits.shape[0]
    return (
        logits.new_empty(rows, dtype=torch.int64),
        logits.new_empty(rows, dtype=torch.float32),
        logits.new_empty(rows, dtype=torch.int32),
    )


def sample_topk(
    logits: Tensor,
    uniforms: Tensor | None,
    k: int,
    *,
    temperature: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Choose `k` distinct tokens a row: the children of a node in a draft tree.

    Without uniforms they are the `k` largest logits in descending order, the lowest id first on a tie. With uniforms
    they are drawn without replacement, in draw order: draw `j` by inverse CDF from the processed distribution (see
    `sample`) without the earlier ones, renormalised. Rows with temperature 0 take the best `k` in any case, scored at
    temperature 1.

    Args:
        logits: float32, bfloat16 or float16 `[R, V]`; rows may lie any distance apart.
        uniforms: float32 `[R, k]` in [0, 1), or None.
        k: tokens a row, 1 to V.
        temperature, top_k, top_p, min_p: as for `sample`.

    Returns:
        tokens: int64 `[R, k]`, -1 where fewer than `k` ids pass the filters with a finite logit. A row with a NaN, a
            +inf or no finite logit yields the largest finite logit's id (0 if there is none), then -1.
        logprobs: float32 `[R, k]`, in the processed distribution of all tokens; -inf where the token is -1, 0 for the
            one token of a row with bad logits.

    Raises:
        ValueError: an argument has the wrong shape, dtype, device, layout or range; on an NPU, V is above 2097152 or
            `k` above 8192.

    Source: Kool et al., "Stochastic beams and where to find them", ICML 2019 (sampling without replacement).
    """
    return torch.ops.specdec.sample_topk.default(
        logits, uniforms, k, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p
    )


@torch.library.register_fake("specdec::sample_topk")
def _(
    logits: Tensor,
    uniforms: Tensor | None,
    k: int,
    *,
    temperature: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    torch._check_value(1 <= k <= logits.shape[1], lambda: f"k: expected 1 to {logits.shape[1]}, got {k}")
    shape = (logits.shape[0], k)
    return logits.new_empty(shape, dtype=torch.int64), logits.new_empty(shape, dtype=torch.float32)
