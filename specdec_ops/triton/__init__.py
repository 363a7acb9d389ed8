"""The operators as Triton kernels: one source for Ascend NPUs (triton-ascend) and CUDA (triton).

Every function has the name, the arguments and the mutations of its operator in `torch.ops.specdec`. They expect arguments
that its host checks have passed.
"""

from specdec_ops.triton.philox import philox_uniform

__all__ = ["philox_uniform"]
