import torch
import triton
import triton.language as tl
from torch import Tensor

from specdec_ops.triton.runtime import device_of, launch

INFINITY = tl.constexpr(float("inf"))


@triton.jit
def tree_mask_kernel(
    parents,
    cu_nodes,
    mask,
    depth,
    num_rows,
    max_nodes,
    words,
    batch,
    BATCH: tl.constexpr,
    NODES: tl.constexpr,
    WORDS: tl.constexpr,
):
    # The masks of a request are kept as one tile of 32-bit words until they are complete.
    requests = tl.arange(0, BATCH)
    node_index = tl.arange(0, NODES)
    word_index = tl.arange(0, WORDS)
    for b in range(tl.program_id(0), batch, tl.num_programs(0)):
        starts = tl.load(cu_nodes + requests, mask=requests <= batch, other=0)
        claimed = tl.max(tl.where((requests >= 1) & (requests <= b), starts, 0), 0)
        begin = tl.maximum(tl.load(cu_nodes + b), tl.minimum(claimed, num_rows))
        n = tl.minimum(tl.minimum(tl.load(cu_nodes + b + 1), num_rows) - begin, max_nodes)
        tile = tl.zeros([NODES, WORDS], tl.int32)
        depths = tl.zeros([NODES], tl.int32)
        for i in range(0, n):
            parent = tl.load(parents + begin + i)
            parent = tl.where(parent < i, parent, -1)
            above = tl.sum(tl.where(node_index[:, None] == parent, tile, 0), 0)
            own = tl.where(word_index == i // 32, 1 << (i % 32), 0)
            tile = tl.where(node_index[:, None] == i, (above | own)[None, :], tile)
            level = tl.where(parent >= 0, tl.sum(tl.where(node_index == parent, depths, 0), 0) + 1, 0)
            depths = tl.where(node_index == i, level, depths)
        rows = (begin + node_index).to(tl.int64)
        tl.store(
            mask + rows[:, None] * words + word_index[None, :],
            tile,
            mask=(node_index < n)[:, None] & (word_index < words)[None, :],
        )
        tl.store(depth + rows, depths, mask=node_index < n)


@triton.jit
def select_nodes_kernel(tokens, scores, parents, kept, counts, candidates, num_nodes, batch, CANDIDATES: tl.constexpr):
    """kept: 1 where a candidate stays."""
    index = tl.arange(0, CANDIDATES)
    for b in range(tl.program_id(0), batch, tl.num_programs(0)):
        row = tl.cast(b, tl.int64) * candidates
        # A node is no better than its ancestors, so that they are chosen before it; -inf: no candidate.
        effective = tl.where(index == 0, INFINITY, tl.full([CANDIDATES], -INFINITY, tl.float32))
        for i in range(1, candidates):
            parent = tl.load(parents + row + i)
            score = tl.load(scores + row + i).to(tl.float32)
            above = tl.max(tl.where(index == parent, effective, -INFINITY), 0)
            sound = (tl.load(tokens + row + i) >= 0) & (parent >= 0) & (parent < i) & (score > -INFINITY)
            value = tl.where(sound, tl.minimum(score, above), -INFINITY)
            effective = tl.where(index == i, value, effective)
        chosen = tl.zeros([CANDIDATES], tl.int32)
        count = 0
        for _ in range(0, num_nodes):
            best = tl.max(effective, 0)
            if best > -INFINITY:
                i = tl.min(tl.where(effective == best, index, CANDIDATES), 0)
                chosen = tl.where(index == i, 1, chosen)
                effective = tl.where(index == i, -INFINITY, effective)
                count += 1
        tl.store(kept + row + index, chosen, mask=index < candidates)
        tl.store(counts + b, count)


@triton.jit
def pack_nodes_kernel(
    tokens,
    parents,
    kept,
    counts,
    out_tokens,
    out_parents,
    cu_nodes,
    candidates,
    batch,
    BATCH: tl.constexpr,
    CANDIDATES: tl.constexpr,
):
    requests = tl.arange(0, BATCH)
    index = tl.arange(0, CANDIDATES)
    for b in range(tl.program_id(0), batch, tl.num_programs(0)):
        count = tl.load(counts + requests, mask=requests < batch, other=0)
        begin = tl.sum(tl.where(requests < b, count, 0), 0)
        row = tl.cast(b, tl.int64) * candidates
        stays = tl.load(kept + row + index, mask=index < candidates, other=0)
        place = 0
        for i in range(0, candidates):
            if tl.load(kept + row + i) > 0:
                parent = tl.load(parents + row + i)
                parent_place = tl.sum(tl.where(index < parent, stays, 0), 0)
                tl.store(out_tokens + begin + place, tl.load(tokens + row + i))
                tl.store(out_parents + begin + place, tl.where(place > 0, parent_place, -1))
                place += 1
        tl.store(cu_nodes + b + 1, begin + place)


def tree_mask(parents: Tensor, cu_nodes: Tensor, max_nodes: int) -> tuple[Tensor, Tensor]:
    num_rows, batch = parents.shape[0], cu_nodes.shape[0] - 1
    words = triton.cdiv(max_nodes, 64)
    mask = torch.zeros((num_rows, words), dtype=torch.int64, device=parents.device)
    depth = torch.zeros(num_rows, dtype=torch.int32, device=parents.device)
    launch(
        tree_mask_kernel,
        min(batch, device_of(parents).vector_cores) if num_rows else 0,
        parents,
        cu_nodes,
        mask.view(torch.int32),
        depth,
        num_rows,
        max_nodes,
        2 * words,
        batch,
        BATCH=triton.next_power_of_2(batch + 1),
        NODES=max(triton.next_power_of_2(max_nodes), 16),
        WORDS=max(triton.next_power_of_2(2 * words), 8),  # 32 bytes: a store of shorter rows spreads the tile
    )
    return mask, depth


def tree_select(tokens: Tensor, scores: Tensor, parents_in: Tensor, num_nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    batch, candidates = tokens.shape
    device = tokens.device
    out_tokens = torch.full((batch * num_nodes,), -1, dtype=torch.int64, device=device)
    out_parents = torch.full((batch * num_nodes,), -1, dtype=torch.int32, device=device)
    cu_nodes = torch.zeros(batch + 1, dtype=torch.int32, device=device)
    kept = torch.empty((batch, candidates), dtype=torch.int32, device=device)
    counts = torch.empty(batch, dtype=torch.int32, device=device)
    programs = min(batch, device_of(tokens).vector_cores)
    lanes = max(triton.next_power_of_2(candidates), 16)
    launch(
        select_nodes_kernel,
        programs,
        tokens,
        scores,
        parents_in,
        kept,
        counts,
        candidates,
        num_nodes,
        batch,
        CANDIDATES=lanes,
    )
    launch(
        pack_nodes_kernel,
        programs,
        tokens,
        parents_in,
        kept,
        counts,
        out_tokens,
        out_parents,
        cu_nodes,
        candidates,
        batch,
        BATCH=triton.next_power_of_2(max(batch, 2)),
        CANDIDATES=lanes,
    )
    return out_tokens, out_parents, cu_nodes
