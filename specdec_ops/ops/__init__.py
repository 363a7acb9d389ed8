"""Typed wrappers of `torch.ops.specdec.*`, one module an operator family."""

from specdec_ops.ops.philox import philox_uniform

__all__ = ["philox_uniform"]
