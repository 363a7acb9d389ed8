"""The operators as Triton kernels: one source for Ascend NPUs (triton-ascend) and CUDA (triton).

Every function has the name, the arguments and the mutations of its operator in `torch.ops.specdec`. They expect arguments
that its host checks have passed.
"""

from specdec_ops.triton.kv_cache import blocks_release, blocks_reserve, kv_append, kv_rollback, kv_truncate
from specdec_ops.triton.philox import philox_uniform

__all__ = ["blocks_release", "blocks_reserve", "kv_append", "kv_rollback", "kv_truncate", "philox_uniform"]
