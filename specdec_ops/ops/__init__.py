"""Typed wrappers of `torch.ops.specdec.*`, one module an operator family."""

from specdec_ops.ops.philox import philox_uniform
from specdec_ops.ops.sample import sample, sample_topk
from specdec_ops.ops.status import check
from specdec_ops.ops.verify import verify_chain, verify_tree

__all__ = ["check", "philox_uniform", "sample", "sample_topk", "verify_chain", "verify_tree"]
