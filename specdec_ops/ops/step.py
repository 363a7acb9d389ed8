"""The end of a decoding step: what was emitted joins the history, and the next draft length is chosen."""

import torch
from torch import Tensor


def advance(
    history: Tensor,
    lengths: Tensor,
    finished: Tensor,
    tokens: Tensor,
    num_accepted: Tensor,
    eos_ids: Tensor,
    max_lens: Tensor,
) -> Tensor:
    """Append the first `num_accepted + 1` tokens of every request to its history and give the next roots.

    A request ends after the first token of `eos_ids`, which it keeps, and where its history is `max_lens` (or `L`)
    long: the tokens beyond are dropped and `finished` is set. A negative token ends what is appended, too, but not the
    request. A finished request is left as it is.

    Args:
        history: int64 `[B, L]`, prompt and emitted tokens; written in place.
        lengths: int32 `[B]`, tokens in `history`; advanced in place.
        finished: bool `[B]`, set in place.
        tokens: int64 `[B, W]`, as verification gives them: accepted drafts, then one token more, then -1.
        num_accepted: int32 `[B]`, accepted drafts; below 0 appends nothing.
        eos_ids: int64 `[E]`, or `[B, E]` where requests end at different ones; -1 is none.
        max_lens: int32 `[B]`, longest history of each request.

    Returns:
        int64 `[B]`: the last token of each history, 0 where it is empty.

    Raises:
        ValueError: an argument has the wrong shape, dtype, device or layout.
    """
    return torch.ops.specdec.advance.default(history, lengths, finished, tokens, num_accepted, eos_ids, max_lens)


def adapt_draft_length(
    rate: Tensor,
    drafted: Tensor,
    accepted: Tensor,
    *,
    decay: float = 0.9,
    min_draft: int = 1,
    max_draft: int = 8,
    draft_cost: float = 0.1,
) -> Tensor:
    """Estimate how likely a draft token is accepted and choose the number of drafts that pays best.

    Of the `drafted` tokens of the last step the first `trials = min(accepted + 1, drafted)`, up to the first rejection,
    were trials. They move the estimate, without bias, by `(1 - decay) * (accepted - rate * trials) / drafted`.
    A step with `k` drafts yields `1 + rate + ... + rate**k` tokens on average and costs `1 + draft_cost * k`: the `k`
    with the best ratio is chosen, the smallest on a tie.

    Args:
        rate: float32 `[B]`, estimated probability that a draft token is accepted, 0 to 1; moved in place. A NaN counts
            as 0.
        drafted: int32 `[B]`, drafts verified in the last step; 0 or less leaves `rate` as it is.
        accepted: int32 `[B]`, how many of them were accepted.
        decay: weight of the old estimate against a step whose drafts were all trials, 0 to 1.
        min_draft: least number of drafts.
        max_draft: largest number of drafts.
        draft_cost: time to draft one token, in units of a step of the target model.

    Returns:
        int32 `[B]`, drafts to propose next.

    Raises:
        ValueError: an argument has the wrong shape, dtype, device, layout or range.

    Source: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", 2211.17192, section 3.3.
    """
    return torch.ops.specdec.adapt_draft_length.default(
        rate, drafted, accepted, decay=decay, min_draft=min_draft, max_draft=max_draft, draft_cost=draft_cost
    )


@torch.library.register_fake("specdec::advance")
def _(
    history: Tensor,
    lengths: Tensor,
    finished: Tensor,
    tokens: Tensor,
    num_accepted: Tensor,
    eos_ids: Tensor,
    max_lens: Tensor,
) -> Tensor:
    return history.new_empty(history.shape[0])


@torch.library.register_fake("specdec::adapt_draft_length")
def _(
    rate: Tensor,
    drafted: Tensor,
    accepted: Tensor,
    *,
    decay: float = 0.9,
    min_draft: int = 1,
    max_draft: int = 8,
    draft_cost: float = 0.1,
) -> Tensor:
    return torch.empty_like(drafted)
