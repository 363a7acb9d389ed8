from typing import NamedTuple

from torch import Tensor

from specdec_ops.state import DecodeState, Prompts


class Draft(NamedTuple):
    """Candidates of a step; the root, which the decoder puts before them, is node 0 of each request."""

    tokens: Tensor  # int64 [B, num_draft]; -1, or anything else that is no token, where there is no draft
    parents: Tensor | None = None  # int32 [B * (1 + num_draft)], -1 for roots; None: each follows the one before
    logits: Tensor | None = None  # [B * (1 + num_draft), V]: what the children of each node were drawn from, and
    temperature: Tensor | None = None  # float32 [B], at which temperature; no logits: drafts are not random


class Drafter:
    """Two methods make a drafter. This one drafts nothing, which makes decoding plain.

    Methods take and give device tensors of fixed shapes and read nothing on the host. A drafter serves one decoder at a
    time and may keep state of its own by slot; but every token of a request is in `state.history[:, :state.lengths]`,
    and what can be worked out from that needs no rolling back.
    """

    num_draft = 0  # candidates a request and step
    depth = 0  # longest path of them
    is_tree = False
    lookahead = 0  # slots behind the root that `propose` may use in caches of its own on `state.pool`
    hidden_size = 0  # the target's, if `state.hidden` is to be kept

    def prefill(self, state: DecodeState, prompts: Prompts) -> None:
        """Called when requests have been given slots, before their first step."""

    def propose(self, state: DecodeState) -> Draft:
        """Candidates to follow the root of each request."""
        return Draft(tokens=state.history[:, :0])
