"""The operators once more, in plain float64 PyTorch: the specification in code.

Every function has the name, the arguments and the mutations of its operator in `torch.ops.specdec`. They read device
data on the host and take their time; tests compare every backend with them.
"""

from specdec_ops.reference.kv_cache import blocks_release, blocks_reserve, kv_append, kv_rollback, kv_truncate
from specdec_ops.reference.philox import philox_uniform
from specdec_ops.reference.propose import ngram_propose
from specdec_ops.reference.step import adapt_draft_length, advance
from specdec_ops.reference.tree import tree_mask, tree_select

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
