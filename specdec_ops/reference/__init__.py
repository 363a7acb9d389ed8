"""The operators once more, in plain float64 PyTorch: the specification in code.

Every function has the name, the arguments and the mutations of its operator in `torch.ops.specdec`. They read device
data on the host and take their time; tests compare every backend with them.
"""

from specdec_ops.reference.kv_cache import blocks_release, blocks_reserve, kv_append, kv_rollback, kv_truncate
from specdec_ops.reference.philox import philox_uniform

__all__ = ["blocks_release", "blocks_reserve", "kv_append", "kv_rollback", "kv_truncate", "philox_uniform"]
