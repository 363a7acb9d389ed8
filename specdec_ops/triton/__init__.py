"""The operators as Triton kernels: one source for Ascend NPUs (triton-ascend) and CUDA (triton).

Every function has the name, the arguments and the mutations of its operator in `torch.ops.specdec`. They expect
arguments that its host checks have passed: `specdec_ops.devices.triton_kernel` calls both.
"""

from specdec_ops.triton.kv_cache import blocks_release, blocks_reserve, kv_append, kv_rollback, kv_truncate
from specdec_ops.triton.philox import philox_uniform
from specdec_ops.triton.propose import ngram_propose
from specdec_ops.triton.sample import sample, sample_topk
from specdec_ops.triton.step import adapt_draft_length, advance
from specdec_ops.triton.tree import tree_mask, tree_select
from specdec_ops.triton.tree_attention import merge_attention, tree_attention
from specdec_ops.triton.verify import verify_chain, verify_tree

__all__ = [
    "adapt_draft_length",
    "advance",
    "blocks_release",
    "blocks_reserve",
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
