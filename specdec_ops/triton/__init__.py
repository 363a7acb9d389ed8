"""The operators as Triton kernels: one source for Ascend NPUs (triton-ascend) and CUDA (triton).

Every function has the name, the arguments and the mutations of its operator in `torch.ops.specdec`. They expect
arguments that its host checks have passed.
"""

from specdec_ops.triton.kv_cache import blocks_release, blocks_reserve, kv_append, kv_rollback, kv_truncate
from specdec_ops.triton.philox import philox_uniform
from specdec_ops.triton.sample import sample, sample_topk
from specdec_ops.triton.verify import verify_chain, verify_tree

__all__ = [
    "blocks_release",
    "blocks_reserve",
    "kv_append",
    "kv_rollback",
    "kv_truncate",
    "philox_uniform",
    "sample",
    "sample_topk",
    "verify_chain",
    "verify_tree",
]
