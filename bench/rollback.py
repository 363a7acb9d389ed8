"""kv_rollback of 32 layers' K and V: 16 nodes a request, 4 accepted drafts to move.

Peers: index_select + index_copy_ for each cache, with ready indices; a contiguous copy of the same bytes.
"ours chain" is the rollback of a chain, which moves nothing.
"""

import sys
from typing import Any

import torch
from torch import Tensor

from bench.timing import Case, operator

AXES = {"dtype": ["bfloat16", "float32"], "batch": [1, 8, 64]}
QUICK: dict[str, list[Any]] = {}

LAYERS, NODES, CONTEXT, BLOCK, KV_HEADS, DIM = 32, 16, 112, 16, 8, 128
PATH = [0, 3, 7, 10, 14]  # the root, which stays, and the accepted nodes


def case(dtype: str, batch: int) -> Case:
    scalar, blocks = getattr(torch, dtype), -(-(CONTEXT + NODES) // BLOCK)
    caches = [torch.randn(batch * blocks, BLOCK, KV_HEADS, DIM).to(scalar) for _ in range(2 * LAYERS)]
    block_table = torch.randperm(batch * blocks, dtype=torch.int32).view(batch, blocks)
    start_lens = torch.full((batch,), CONTEXT, dtype=torch.int32)
    context_lens = start_lens.clone()
    num_accepted = torch.full((batch,), len(PATH) - 1, dtype=torch.int32)
    path = torch.full((batch, NODES), -1, dtype=torch.int32)
    path[:, : len(PATH)] = torch.tensor(PATH)

    def slots(nodes: Tensor) -> Tensor:
        slot = CONTEXT + nodes
        return (block_table[:, slot // BLOCK].long() * BLOCK + slot % BLOCK).view(-1)

    sources, targets = slots(torch.tensor(PATH[1:])), slots(torch.arange(1, len(PATH)))
    rows = [cache.flatten(0, 1) for cache in caches]

    def indexed(i: int) -> None:
        for cache in rows:
            cache.index_copy_(0, targets, cache.index_select(0, sources))

    flat = torch.randn(2, 2 * LAYERS * batch * (len(PATH) - 1) * KV_HEADS * DIM).to(scalar)

    runs: dict[str, Any] = {}
    skipped: dict[str, str] = {}
    ours = operator("kv_rollback")
    if isinstance(ours, str):
        skipped["ours"] = skipped["ours chain"] = ours
    else:

        def rollback(path: Tensor | None) -> None:
            ours(caches, block_table, context_lens, num_accepted, path)
            context_lens.copy_(start_lens)  # for the next call; its time counts as ours

        # A comparison of equals, and a chain writes nothing.
        before = caches[-1].clone()
        rollback(None)
        if not torch.equal(caches[-1], before):
            print("a chain's rollback wrote to the caches", file=sys.stderr)
        rollback(path)
        after = caches[-1].clone()
        caches[-1].copy_(before)
        indexed(0)
        if not torch.equal(caches[-1], after):
            print("ours and index_copy_ leave different caches", file=sys.stderr)
        runs["ours"] = lambda i: rollback(path)
        runs["ours chain"] = lambda i: rollback(None)

    runs["index"] = indexed
    runs["copy"] = lambda i: flat[0].copy_(flat[1])
    # Floor: the moved rows once in, once out. (Reading both is not slower than reading one and writing the other.)
    return Case(runs, 1, lambda i: [flat], partial=frozenset({"copy", "ours chain"}), skipped=skipped)
