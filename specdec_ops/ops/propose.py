"""Drafts without a model."""

import torch
from torch import Tensor


def ngram_propose(history: Tensor, lengths: Tensor, *, min_n: int, max_n: int, num_draft: int) -> tuple[Tensor, Tensor]:
    """Propose what followed the last tokens where they stood before (prompt lookup).

    Of the `n` in `min_n..max_n` the longest is taken whose final `n`-gram occurs earlier in the history, and of its
    occurrences the earliest; it may overlap the final one. The drafts are the tokens after it, as far as there are any.

    Args:
        history: int64 `[B, L]`, prompt and emitted tokens.
        lengths: int32 `[B]`, tokens in `history`.
        min_n: shortest n-gram to look for, at least 1.
        max_n: longest.
        num_draft: tokens to propose.

    Returns:
        tokens: int64 `[B, num_draft]`, -1 after the last draft.
        num_found: int32 `[B]`, drafts found.

    Raises:
        ValueError: an argument has the wrong shape, dtype, device, layout or range.

    Source: Saxena, "Prompt Lookup Decoding", 2023; the same choice as in vLLM and transformers.
    """
    return torch.ops.specdec.ngram_propose.default(history, lengths, min_n=min_n, max_n=max_n, num_draft=num_draft)


@torch.library.register_fake("specdec::ngram_propose")
def _(history: Tensor, lengths: Tensor, *, min_n: int, max_n: int, num_draft: int) -> tuple[Tensor, Tensor]:
    return history.new_empty((history.shape[0], num_draft)), torch.empty_like(lengths)
