"""Verification of chains and trees: which drafts stay, and which token follows them.

After the records of the target's (and draft's) rows, one program decides a request. A chain is a tree whose nodes have
one child: `rejection` is `recursive` and `block` is `traversal` there. Where drafts are rejected at a node, the node's
distribution becomes p <- norm(max(W p - q, 0)) once a child; it is not stored but computed again, block by block, from
three numbers a child.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdec_ops.triton.distribution import (
    inverse_temperature,
    load_record,
    nodes_of,
    probabilities,
    row_records,
)
from specdec_ops.triton.distribution import ENTROPY as ENTROPY
from specdec_ops.triton.distribution import FIELDS as FIELDS
from specdec_ops.triton.distribution import INFINITY as INFINITY
from specdec_ops.triton.runtime import device_of, launch

DRAFT_OUT_OF_RANGE = tl.constexpr(4)  # status bit
MALFORMED_TREE = tl.constexpr(8)  # status bit

RECURSIVE = tl.constexpr(0)  # and `rejection`
TRAVERSAL = tl.constexpr(1)  # and `block`
TARGET_ONLY = tl.constexpr(2)
TYPICAL = tl.constexpr(3)
STRICT = tl.constexpr(4)
CHAIN_RULES = {"rejection": RECURSIVE, "block": TRAVERSAL, "strict": STRICT, "typical": TYPICAL}
TREE_RULES = {"target_only": TARGET_ONLY, "recursive": RECURSIVE, "traversal": TRAVERSAL, "typical": TYPICAL}

POINT = tl.constexpr(16)  # lanes for the probability of one token


@triton.jit
def _at(vector, lanes, i):
    return tl.sum(tl.where(lanes == i, vector, 0), 0)


@triton.jit
def _target_block(target, target_records, begin, slot, node, vocab, stride, scale, greedy, ids):
    """The node's processed distribution at `ids`."""
    maximum, threshold, total, argmax, status = load_record(target_records, slot + node)
    row = target + tl.cast(begin + node, tl.int64) * stride
    x = tl.load(row + ids, mask=ids < vocab, other=-INFINITY).to(tl.float32)
    p = probabilities(x, ids, maximum, threshold, total, argmax, greedy | (status > 0), scale)
    return tl.where(ids < vocab, p, 0.0)


@triton.jit
def _residual_block(
    target,
    target_records,
    draft,
    draft_records,
    tokens,
    begin,
    slot,
    node,
    upto,
    live,
    weights,
    masses,
    draft_masses,
    lanes,
    vocab,
    target_stride,
    draft_stride,
    scale,
    draft_scale,
    greedy,
    draft_greedy,
    ids,
    RULE: tl.constexpr,
):
    """p and q of a node at `ids`, after its children before `upto` were rejected."""
    p = _target_block(target, target_records, begin, slot, node, vocab, target_stride, scale, greedy, ids)
    if draft is None:
        q = tl.zeros_like(p)
    else:
        q = _target_block(draft, draft_records, begin, slot, node, vocab, draft_stride, draft_scale, False, ids)
    for child in range(node + 1, upto):
        if _at(live, lanes, child) == node:
            x = tl.load(tokens + begin + child).to(tl.int32)
            if RULE == TARGET_ONLY:
                p = tl.where(ids == x, 0.0, p)
            else:
                mass = _at(masses, lanes, child)
                draft_mass = _at(draft_masses, lanes, child)
                drawn_from = q / tl.where(draft_mass > 0, draft_mass, 1.0)
                if draft is None:
                    drawn_from = tl.where(ids == x, 1.0, 0.0)
                else:
                    drawn_from = tl.where(draft_greedy, tl.where(ids == x, 1.0, 0.0), drawn_from)
                excess = tl.maximum(_at(weights, lanes, child) * p - drawn_from, 0.0)
                p = tl.where(mass > 0, excess / tl.where(mass > 0, mass, 1.0), p)
                q = tl.where(ids == x, 0.0, q)
    return p, q
