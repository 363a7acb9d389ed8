"""Typed wrappers of `torch.ops.specdec.*`, one module an operator family."""

from specdec_ops.ops.philox import philox_uniform
from specdec_ops.ops.tree_attention import merge_attention, tree_attention

__all__ = ["merge_attention", "philox_uniform", "tree_attention"]
