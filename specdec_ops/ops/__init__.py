"""Typed wrappers of `torch.ops.specdec.*`, one module an operator family."""

from specdec_ops.ops.kv_cache import blocks_release, blocks_reserve, kv_append, kv_rollback, kv_truncate
from specdec_ops.ops.philox import philox_uniform

__all__ = ["blocks_release", "blocks_reserve", "kv_append", "kv_rollback", "kv_truncate", "philox_uniform"]
