from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdec_ops.triton.runtime import device_of, launch

INFINITY = tl.constexpr(float("inf"))
INT32_MIN = tl.constexpr(-(2**31))
TAIL = tl.constexpr(32)  # nodes a step: one 32-bit word of the mask, since the vector unit has no 64-bit operations


@triton.jit
def _accumulate(m, total, acc, q, k, v, visible, scale, softcap, k_scale, v_scale, SCALED: tl.constexpr):
    """One step of the online softmax. Rows that have seen nothing keep m = -inf."""
    scores = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision="ieee") * scale
    if SCALED:
        scores = scores * k_scale[None, :]
    if softcap is not None:
        # softcap * tanh; a quotient would need a block of its numerator (docs/triton-ascend.md).
        scores = softcap - 2.0 * softcap * tl.exp(-tl.log(1.0 + tl.exp(scores * (2.0 / softcap))))
    scores = tl.where(visible, scores, -INFINITY)
    higher = tl.maximum(m, tl.max(scores, 1))
    shift = tl.where(higher > -INFINITY, higher, 0.0)
    weights = tl.exp(scores - shift[:, None])
    decay = tl.exp(m - shift)
    total = total * decay + tl.sum(weights, 1)
    if SCALED:
        weights = weights * v_scale[None, :]
    acc = acc * decay[:, None] + tl.dot(weights.to(q.dtype), v.to(q.dtype), input_precision="ieee")
    return higher, total, acc


@triton.jit
def _rows(cache, stride, offset, here, lanes, size):
    return tl.load(
        cache + offset[:, None].to(tl.int64) * stride + lanes[None, :],
        mask=here[:, None] & (lanes < size)[None, :],
        other=0.0,
    )


@triton.jit
def _scales(scales, kv_head, kv_heads, slot, here, PER_TOKEN: tl.constexpr):
    """Of the cache's rows `slot`."""
    if scales is None:
        return 1.0
    elif PER_TOKEN:
        return tl.load(scales + slot * kv_heads + kv_head, mask=here, other=0.0)
    else:
        return tl.load(scales + kv_head) + tl.zeros(here.shape, tl.float32)


@triton.jit
def _spread(values, indices, rows):
    """For each of `rows` the value of its index. A broadcast reshaped to rows would do it, but the Ascend compiler
    carries a reshape on into all that follows, which then walks over nodes (docs/triton-ascend.md)."""
    return tl.sum(tl.where(indices[:, None] == rows[None, :], values[:, None], 0), 0)


@triton.jit
def tree_attention_kernel(
    q,
    k_cache,
    v_cache,
    block_table,
    context_lens,
    cu_nodes,
    mask,
    depth,
    sinks,
    k_scale,
    v_scale,
    powers,
    out,
    lse,
    scale,
    softcap,
    window,
    q_node,
    q_head,
    k_block,
    k_offset,
    k_head,
    v_block,
    v_offset,
    v_head,
    num_rows,
    max_nodes,
    max_blocks,
    capacity,
    num_blocks,
    block_size,
    heads,
    kv_heads,
    group,
    size,
    v_size,
    mask_words,
    tasks,
    row_blocks,
    batch,
    PER_TOKEN: tl.constexpr,
    BATCH: tl.constexpr,
    NODES: tl.constexpr,
    GROUP: tl.constexpr,
    SLOTS: tl.constexpr,
    SIZE: tl.constexpr,
    V_SIZE: tl.constexpr,
):
    # A task is NODES nodes of a request with all query heads of one KV head: the rows of both matrix products. The
    # committed context comes page by page, unmasked but for its end; then the nodes, 32 at a time, by the mask's bits.
    ROWS: tl.constexpr = NODES * GROUP
    LSE_LANES: tl.constexpr = 8 if GROUP == 1 else GROUP
    d = tl.arange(0, SIZE)
    d_v = tl.arange(0, V_SIZE)
    SCALED: tl.constexpr = k_scale is not None
    for task in range(tl.program_id(0), tasks, tl.num_programs(0)):
        b = task // (kv_heads * row_blocks)
        kv_head = task // row_blocks % kv_heads
        requests = tl.arange(0, BATCH)
        starts = tl.load(cu_nodes + requests, mask=requests <= batch, other=0)
        begin = tl.minimum(tl.max(tl.where(requests <= b, starts, 0), 0), num_rows)
        end = tl.minimum(tl.max(tl.where(requests <= b + 1, starts, 0), 0), num_rows)
        n = tl.minimum(end - begin, max_nodes)
        first = (task % row_blocks) * NODES
        if first < n:
            context = tl.maximum(tl.load(context_lens + b), 0)
            node = first + tl.arange(0, NODES)
            head = tl.arange(0, GROUP)
            present = (node < n)[:, None] & (head < group)[None, :]
            q_rows = (begin + node)[:, None].to(tl.int64) * q_node
            q_rows += (kv_head * group + head)[None, :].to(tl.int64) * q_head
            tile = tl.load(
                q + q_rows[:, :, None] + d[None, None, :],
                mask=present[:, :, None] & (d < size)[None, None, :],
                other=0.0,
            )
            tile = tl.reshape(tile, [ROWS, SIZE])
            row = tl.arange(0, ROWS)
            row_node = first + row // GROUP
            row_depth = row_node
            if depth is not None:
                node_depth = tl.load(depth + begin + node, mask=node < n, other=0)
                row_depth = _spread(node_depth, node, row_node)

            if sinks is None:
                m = tl.full([ROWS], -INFINITY, tl.float32)
                total = tl.zeros([ROWS], tl.float32)
            else:
                sink = tl.load(sinks + kv_head * group + head, mask=head < group, other=0.0)
                m = _spread(sink, head, row & (GROUP - 1))
                total = tl.full([ROWS], 1.0, tl.float32)
            acc = tl.zeros([ROWS, V_SIZE], tl.float32)
            table = block_table + tl.cast(b, tl.int64) * max_blocks
            keys = k_cache + tl.cast(kv_head, tl.int64) * k_head
            values = v_cache + tl.cast(kv_head, tl.int64) * v_head
            steps = (block_size + SLOTS - 1) // SLOTS

            # Lengths and depths may be any int32: no sum of them may overflow.
            filled = tl.minimum(context, capacity)
            pages = filled // block_size + tl.where(filled % block_size > 0, 1, 0)
            first_page = 0
            if window is not None:
                # The oldest position that a row sees, relative to the end of the context.
                oldest = tl.maximum(row_depth, INT32_MIN + (window - 1)) - (window - 1)
                first_page = tl.maximum(context + tl.minimum(tl.min(oldest, 0), 0), 0) // block_size
            for page in range(first_page, pages):
                block = tl.load(table + page).to(tl.int64)
                in_cache = (block >= 0) & (block < num_blocks)
                for step in range(0, tl.where(in_cache, steps, 0)):
                    offset = step * SLOTS + tl.arange(0, SLOTS)
                    here = offset < tl.minimum(block_size, filled - page * block_size)
                    k = _rows(keys + block * k_block, k_offset, offset, here, d, size)
                    v = _rows(values + block * v_block, v_offset, offset, here, d_v, v_size)
                    k_factor = _scales(k_scale, kv_head, kv_heads, block * block_size + offset, here, PER_TOKEN)
                    v_factor = _scales(v_scale, kv_head, kv_heads, block * block_size + offset, here, PER_TOKEN)
                    visible = here[None, :] & (row_node >= 0)[:, None]
                    if window is not None:
                        visible = visible & ((page * block_size - context + offset)[None, :] >= oldest[:, None])
                    m, total, acc = _accumulate(
                        m, total, acc, tile, k, v, visible, scale, softcap, k_factor, v_factor, SCALED
                    )

            power = tl.load(powers + tl.arange(0, TAIL))
            in_table = tl.minimum(n, tl.maximum(capacity - context, 0))  # nodes that have a slot
            for word in range(0, (in_table + TAIL - 1) // TAIL):
                other = word * TAIL + tl.arange(0, TAIL)
                if mask is None:
                    sees = other[None, :] <= row_node[:, None]
                else:
                    bits = tl.load(
                        mask + (begin + node).to(tl.int64) * mask_words + word,
                        mask=(node < n) & (word < mask_words),
                        other=0,
                    )
                    sees = (_spread(bits, node, row_node)[:, None] & power[None, :]) != 0
                if window is not None:
                    other_depth = other
                    if depth is not None:
                        other_depth = tl.load(depth + begin + other, mask=other < in_table, other=0)
                    sees = sees & (other_depth[None, :] >= oldest[:, None])
                # The word's slots may lie in several pages: each is read where it is.
                slot = context + other
                last = context + tl.minimum(word * TAIL + TAIL, in_table) - 1
                for page in range((context + word * TAIL) // block_size, last // block_size + 1):
                    block = tl.load(table + page).to(tl.int64)
                    offset = slot - page * block_size
                    in_page = (offset >= 0) & (offset < block_size) & (other < in_table)
                    here = in_page & (block >= 0) & (block < num_blocks)
                    k = _rows(keys + block * k_block, k_offset, offset, here, d, size)
                    v = _rows(values + block * v_block, v_offset, offset, here, d_v, v_size)
                    k_factor = _scales(k_scale, kv_head, kv_heads, block * block_size + offset, here, PER_TOKEN)
                    v_factor = _scales(v_scale, kv_head, kv_heads, block * block_size + offset, here, PER_TOKEN)
                    visible = sees & here[None, :]
                    m, total, acc = _accumulate(
                        m, total, acc, tile, k, v, visible, scale, softcap, k_factor, v_factor, SCALED
                    )

            seen = total != 0  # also where it is NaN
            acc = acc / tl.where(seen, total, 1.0)[:, None]
            row_lse = tl.where(seen, m + tl.log(tl.where(seen, total, 1.0)), -INFINITY)
            # Always so, but a region of its own, which reshapes do not leave (see `_spread`). A store takes each of its
            # rows from an address of 32 bytes: if lse had rows of one number, all that leads to it were so spread.
            if n > first:
                out_rows = (begin + node)[:, None].to(tl.int64) * heads + kv_head * group
                lane = tl.arange(0, LSE_LANES)
                tl.store(
                    lse + out_rows + lane[None, :],
                    tl.reshape(row_lse, [NODES, GROUP]) + tl.zeros([NODES, LSE_LANES], tl.float32),
                    mask=(node < n)[:, None] & (lane < group)[None, :],
                )
                tl.store(
                    out + (out_rows + head[None, :])[:, :, None] * v_size + d_v[None, None, :],
                    tl.reshape(acc, [NODES, GROUP, V_SIZE]).to(tile.dtype),
                    mask=present[:, :, None] & (d_v < v_size)[None, None, :],
                )


@triton.jit
def merge_attention_kernel(out_a, lse_a, out_b, lse_b, out, lse, rows, size, SIZE: tl.constexpr):
    d = tl.arange(0, SIZE)
    lane = tl.zeros([SIZE], tl.float32)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        a = lane + tl.load(lse_a + row)
        b = lane + tl.load(lse_b + row)
        higher = tl.maximum(a, b)
        shift = tl.where(higher > -INFINITY, higher, 0.0)
        weight_a = tl.exp(a - shift)
        weight_b = tl.exp(b - shift)
        total = weight_a + weight_b
        seen = total != 0
        divisor = tl.where(seen, total, 1.0)
        offsets = tl.cast(row, tl.int64) * size + d
        part_a = tl.load(out_a + offsets, mask=d < size, other=0.0)
        part_b = tl.load(out_b + offsets, mask=d < size, other=0.0)
        # What has no weight may be anything; a weight of NaN stays one.
        merged = tl.where(weight_a != 0, weight_a / divisor * part_a.to(tl.float32), 0.0)
        merged += tl.where(weight_b != 0, weight_b / divisor * part_b.to(tl.float32), 0.0)
        tl.store(out + offsets, merged.to(part_a.dtype), mask=d < size)
        tl.store(lse + row + d, tl.where(seen, shift + tl.log(divisor), -INFINITY), mask=d == 0)


@cache
def _powers(device: torch.device) -> Tensor:
    """1 << i for a word's bits: a table, because a shift by element would be a scalar loop."""
    return torch.tensor([1 << i if i < 31 else -(1 << 31) for i in range(32)], dtype=torch.int32, device=device)


def tree_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    cu_nodes: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float,
    softcap: float = 0.0,
    window: int = 0,
    depth: Tensor | None = None,
    sinks: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    max_nodes: int,
) -> tuple[Tensor, Tensor]:
    num_rows, heads, size = q.shape
    num_blocks, block_size, kv_heads, v_size = v_cache.shape
    batch, max_blocks = block_table.shape
    out = torch.zeros((num_rows, heads, v_size), dtype=q.dtype, device=q.device)
    lse = torch.full((num_rows, heads), -float("inf"), dtype=torch.float32, device=q.device)
    if window > 0 and depth is None and mask is not None:
        bits = (mask[:, :, None] >> torch.arange(64, device=q.device)) & 1
        depth = (bits.sum((1, 2)) - 1).to(torch.int32)
    group = heads // kv_heads
    group_lanes = triton.next_power_of_2(group)
    # Rows of the products: 16 at least, 64 where their float32 sums leave room for the keys and values.
    rows = 64 if max(size, v_size) <= 128 else 16
    nodes = max(min(triton.next_power_of_2(max_nodes), rows // group_lanes), 16 // group_lanes, 1)
    # Keys and values of int8 are there twice, as they come and as floats.
    slots = (128 if k_scale is None else 64) if size <= 128 else 16
    row_blocks = triton.cdiv(max_nodes, nodes)
    tasks = batch * kv_heads * row_blocks
    powers = _powers(q.device)
    launch(
        tree_attention_kernel,
        min(tasks, device_of(q).cube_cores) if num_rows else 0,
        q,
        k_cache,
        v_cache,
        block_table,
        context_lens,
        cu_nodes,
        None if mask is None else mask.view(torch.int32),
        depth if window > 0 else None,
        sinks,
        k_scale,
        v_scale,
        powers,
        out,
        lse,
        scale,
        softcap if softcap > 0 else None,
        window if window > 0 else None,
        q.stride(0),
        q.stride(1),
        *k_cache.stride()[:3],
        *v_cache.stride()[:3],
        num_rows,
        max_nodes,
        max_blocks,
        min(max_blocks * block_size, 2**31 - 1),  # what an int32 length can reach
        num_blocks,
        block_size,
        heads,
        kv_heads,
        group,
        size,
        v_size,
        0 if mask is None else 2 * mask.shape[1],
        tasks,
        row_blocks,
        batch,
        PER_TOKEN=k_scale is not None and k_scale.dim() > 1,
        BATCH=triton.next_power_of_2(batch + 1),
        NODES=nodes,
        GROUP=group_lanes,
        SLOTS=min(max(triton.next_power_of_2(block_size), 16), slots),
        SIZE=max(triton.next_power_of_2(size), 16),
        V_SIZE=max(triton.next_power_of_2(v_size), 16),
    )
    return out, lse


def merge_attention(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    out, lse = torch.empty_like(out_a), torch.empty_like(lse_a)
    rows, size = lse_a.numel(), out_a.shape[-1]
    programs = min(rows, device_of(out_a).vector_cores)
    launch(
        merge_attention_kernel,
        programs,
        out_a,
        lse_a,
        out_b,
        lse_b,
        out,
        lse,
        rows,
        size,
        SIZE=max(triton.next_power_of_2(size), 16),
    )
    return out, lse
