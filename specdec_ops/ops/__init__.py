"""Typed wrappers of `torch.ops.specdec.*`, one module an operator family."""

from specdec_ops.ops.kv_cache import blocks_release, blocks_reserve, kv_append, kv_rollback, kv_truncate
from specdec_ops.ops.philox import philox_uniform
from specdec_ops.ops.sample import sample, sample_topk
from specdec_ops.ops.status import check
from specdec_ops.ops.verify import verify_chain

__all__ = [
    "blocks_release",
    "blocks_reserve",
    "check",
    "kv_append",
    "kv_rollback",
    "kv_truncate",
    "philox_uniform",
    "sample",
    "sample_topk",
    "verify_chain",
]
