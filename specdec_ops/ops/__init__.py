"""Typed wrappers of `torch.ops.specdec.*`, one module an operator family.

They call `.default`, the one overload that each operator has, which spares looking for it at every call.
"""

from specdec_ops.ops.kv_cache import blocks_release, blocks_reserve, kv_append, kv_rollback, kv_truncate
from specdec_ops.ops.philox import philox_uniform
from specdec_ops.ops.propose import ngram_propose
from specdec_ops.ops.sample import sample, sample_topk
from specdec_ops.ops.status import check
from specdec_ops.ops.step import adapt_draft_length, advance
from specdec_ops.ops.tree import tree_mask, tree_select
from specdec_ops.ops.tree_attention import merge_attention, tree_attention
from specdec_ops.ops.verify import verify_chain, verify_tree

__all__ = [
    "adapt_draft_length",
    "advance",
    "blocks_release",
    "blocks_reserve",
    "check",
    "kv_append",
    "kv_rollback",
    "kv_truncate",
    "merge_attention",
    "ngram_propose",
    "philox_uniform",
    "sample",
    "sample_topk",
    "tree_attention",
    "tree_mask",
    "tree_select",
    "verify_chain",
    "verify_tree",
]
