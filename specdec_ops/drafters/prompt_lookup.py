from specdec_ops import ops
from specdec_ops.drafters.base import Draft, Drafter
from specdec_ops.state import DecodeState


class PromptLookup(Drafter):
    """Drafts what followed the latest tokens where they stood first: for text that repeats its prompt or itself.

    Args:
        num_draft: candidates a step.
        min_n, max_n: lengths of the n-grams to look for; the longest found wins.

    Source: Saxena, "Prompt lookup decoding", 2023.
    """

    def __init__(self, num_draft: int, min_n: int = 1, max_n: int = 3) -> None:
        if num_draft < 1 or not 1 <= min_n <= max_n:
            raise ValueError(f"expected num_draft >= 1 and 1 <= min_n <= max_n, got {num_draft}, {min_n} and {max_n}")
        self.num_draft = self.depth = num_draft
        self.min_n, self.max_n = min_n, max_n

    def propose(self, state: DecodeState) -> Draft:
        tokens, _ = ops.ngram_propose(
            state.history, state.lengths, min_n=self.min_n, max_n=self.max_n, num_draft=self.num_draft
        )
        return Draft(tokens)
