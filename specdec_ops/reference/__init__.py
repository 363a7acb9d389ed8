"""The operators once more, in plain float64 PyTorch: the specification in code.

Every function has the name, the arguments and the mutations of its operator in `torch.ops.specdec`. They read device
data on the host and take their time; tests compare every backend with them.
"""

from specdec_ops.reference.philox import philox_uniform
from specdec_ops.reference.tree_attention import merge_attention, tree_attention

__all__ = ["merge_attention", "philox_uniform", "tree_attention"]
