"""Typed wrappers of `torch.ops.specdec.*`, one module an operator family."""

from specdec_ops.ops.kv_cache import blocks_release, blocks_reserve, kv_append, kv_rollback, kv_truncate
from specdec_ops.ops.philox import philox_uniform
from specdec_ops.ops.propose import ngram_propose
from specdec_ops.ops.step import adapt_draft_length, advance
from specdec_ops.ops.tree import tree_mask, tree_select

__all__ = [
    "adapt_draft_length",
    "advance",
    "blocks_release",
    "blocks_reserve",
    "kv_append",
    "kv_rollback",
    "kv_truncate",
    "ngram_propose",
    "philox_uniform",
    "tree_mask",
    "tree_select",
]
