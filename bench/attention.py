"""tree_attention over a paged cache with a tree mask, heads 32/8 of 128.

Peers: torch SDPA with the mask over gathered, contiguous K and V, plain and with the GQA group folded into rows; vLLM's
paged attention (a chain: it knows no trees); SGLang's extend attention with the tree mask, or its decode attention.
"""

import math
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bench import inputs, peers
from bench.timing import Case, num_sets, operator

AXES = {
    "dtype": ["float32", "bfloat16"],
    "batch": [1, 8],
    "context": [512, 4096, 16384],
    "nodes": [1, 8, 16, 64],
}
QUICK = {"batch": [1, 8], "context": [512, 4096], "nodes": [1, 8, 64]}

HEADS, KV_HEADS, DIM = 32, 8, 128
GROUP = HEADS // KV_HEADS
SCALE = DIM**-0.5
BLOCK = 128  # tokens a block, vLLM's default on the CPU


def reference(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """One request in float32: q `[nodes, H, D]`, k and v `[tokens, H_kv, D]`, mask bool `[nodes, tokens]`."""
    q, k, v = (x.float().transpose(0, 1) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True).transpose(0, 1)


def vllm_attention(operators: Any, q: Tensor, k: Tensor, v: Tensor) -> Callable[[], Tensor]:
    """vLLM's operator on its own cache layout; cache, block table and schedule are prepared outside the timing."""
    batch, tokens = k.shape[:2]
    amx = torch.cpu._is_amx_tile_supported() and q.dtype == torch.bfloat16
    isa = "amx" if amx else "vec"  # as vLLM chooses for this block size
    blocks = math.ceil(tokens / BLOCK)
    cache = torch.zeros(batch * blocks, KV_HEADS, 2 * BLOCK, DIM, dtype=q.dtype)
    k_cache, v_cache = cache.chunk(2, dim=2)
    table = torch.randperm(batch * blocks, dtype=torch.int32).view(batch, blocks)
    slot = torch.arange(tokens)
    slots = (table[:, slot // BLOCK].long() * BLOCK + slot % BLOCK).view(-1)
    operators.cpu_attn_reshape_and_cache(k.flatten(0, 1), v.flatten(0, 1), k_cache, v_cache, slots, isa)
    starts = torch.arange(batch + 1, dtype=torch.int32) * (q.shape[0] // batch)
    lengths = torch.full((batch,), tokens, dtype=torch.int32)
    causal, alibi, window, softcap, sinks, causal_per_request = True, None, -1, 0.0, None, None
    schedule = operators.get_scheduler_metadata(
        batch, HEADS, KV_HEADS, DIM, lengths, q.dtype, starts, causal, window, isa, True, causal_per_request
    )
    how = (SCALE, causal, alibi, window, table, softcap, schedule, sinks, causal_per_request)

    def run() -> Tensor:
        out = torch.empty_like(q)
        operators.cpu_attention_with_kv_cache(q, k_cache, v_cache, out, starts, lengths, *how)
        return out

    return run


def sglang_attention(operators: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Callable[[], Tensor]:
    """SGLang's operators on a pool of tokens, those of a block next to each other."""
    batch, tokens = k.shape[:2]
    nodes, blocks = q.shape[0] // batch, math.ceil(tokens / BLOCK)
    slot = torch.arange(tokens)
    slots = (torch.randperm(batch * blocks).view(batch, blocks)[:, slot // BLOCK] * BLOCK + slot % BLOCK).int()
    k_pool, v_pool = torch.zeros(2, batch * blocks * BLOCK, KV_HEADS, DIM, dtype=q.dtype)
    k_pool[slots.long()], v_pool[slots.long()] = k, v
    k_new, v_new = (x[:, tokens - nodes :].flatten(0, 1).contiguous() for x in (k, v))
    requests, lengths = torch.arange(batch), torch.full((batch,), tokens)
    new_lengths, starts = torch.full((batch,), nodes, dtype=torch.int32), (torch.arange(batch) * nodes).int()
    masks = mask.expand(batch, -1, -1).contiguous()
    partial = torch.empty(batch, HEADS, 8, DIM + 1)  # SGLang's own choice: decode splits the context in 8
    cap, cross_attention, window, encoder_lengths, sinks = 0.0, False, -1, None, None
    how = (SCALE, cap, cross_attention, window, encoder_lengths, sinks)

    def decode() -> Tensor:
        out = torch.empty_like(q)
        operators.decode_attention_cpu(
            q, k_pool, v_pool, out, None, None, None, partial, slots, requests, lengths, *how
        )
        return out

    def extend() -> Tensor:
        out, cached = torch.empty_like(q), (k_pool, v_pool, slots, requests, lengths)
        operators.extend_attention_cpu(q, k_new, v_new, out, *cached, new_lengths, starts, nodes, *how, masks)
        return out

    return decode if nodes == 1 else extend


def paged(x: Tensor, block_table: Tensor) -> Tensor:
    """`[batch, tokens, H_kv, D]` to blocks `[blocks, BLOCK, H_kv, D]`."""
    batch, tokens = x.shape[:2]
    cache = torch.zeros(block_table.numel(), BLOCK, KV_HEADS, DIM, dtype=x.dtype)
    slot = torch.arange(tokens)
    cache[block_table[:, slot // BLOCK].long(), (slot % BLOCK).expand(batch, -1)] = x
    return cache


def case(dtype: str, batch: int, context: int, nodes: int) -> Case:
    scalar, tokens = getattr(torch, dtype), context + nodes
    q = torch.randn(batch * nodes, HEADS, DIM).to(scalar)
    kv_bytes = 2 * batch * tokens * KV_HEADS * DIM * q.itemsize
    sets = num_sets(kv_bytes)
    tree = inputs.ancestors(inputs.random_tree(nodes))
    mask = torch.cat([torch.ones(nodes, context, dtype=torch.bool), tree], dim=1)
    keys_values = [torch.randn(2, batch, tokens, KV_HEADS, DIM).to(scalar) for _ in range(sets)]

    # Torch: K and V already gathered to [batch, H_kv, tokens, D].
    gathered = [[x.transpose(1, 2).contiguous() for x in kv] for kv in keys_values]
    q_heads = q.view(batch, nodes, HEADS, DIM).transpose(1, 2).contiguous()
    q_folded = q_heads.view(batch, KV_HEADS, GROUP * nodes, DIM)
    mask_folded = mask.repeat(GROUP, 1)

    def sdpa(i: int) -> Tensor:
        k, v = gathered[i]
        return F.scaled_dot_product_attention(q_heads, k, v, attn_mask=mask, enable_gqa=True)

    def sdpa_folded(i: int) -> Tensor:
        k, v = gathered[i]
        return F.scaled_dot_product_attention(q_folded, k, v, attn_mask=mask_folded)

    runs: dict[str, Any] = {}
    skipped: dict[str, str] = {}

    # Ours.
    blocks = math.ceil(tokens / BLOCK)
    block_table = torch.randperm(batch * blocks, dtype=torch.int32).view(batch, blocks)
    caches = [[paged(x, block_table) for x in kv] for kv in keys_values]
    context_lens = torch.full((batch,), context, dtype=torch.int32)
    cu_nodes = torch.arange(batch + 1, dtype=torch.int32) * nodes
    words = inputs.pack_mask(tree).repeat(batch, 1)
    ours = operator("tree_attention")
    if isinstance(ours, str):
        skipped["ours"] = ours
    else:
        runs["ours"] = lambda i: ours(
            q, *caches[i], block_table, context_lens, cu_nodes, words, scale=SCALE, max_nodes=nodes
        )[0]

    # Peers.
    runs["sdpa"], runs["sdpa folded"] = sdpa, sdpa_folded
    operators = peers.vllm()
    if isinstance(operators, str):
        skipped["vllm"] = skipped["sglang"] = operators
    else:
        vllm = [vllm_attention(operators, q, k, v) for k, v in keys_values]
        runs["vllm"] = lambda i: vllm[i]()
        if scalar == torch.float32:
            skipped["sglang"] = "its operators take no float32"
        else:
            sglang = [sglang_attention(operators, q, k, v, tree) for k, v in keys_values]
            runs["sglang"] = lambda i: sglang[i]()

    # A comparison of equals: everyone's first request against float32.
    k, v = (x[0] for x in keys_values[0])
    chain = torch.cat([mask[:, :context], torch.ones_like(tree).tril()], dim=1)
    for name, run in runs.items():
        out = run(0)[0] if name.startswith("sdpa") else run(0)[:nodes]
        if name.startswith("sdpa"):
            out = out.reshape(HEADS, nodes, DIM).transpose(0, 1)
        expected = reference(q[:nodes], k, v, chain if name == "vllm" else mask)
        error = (out.float() - expected).abs().max().item()
        if not error < (1e-4 if scalar == torch.float32 else 2e-2):
            print(f"{name} disagrees with float32 attention by {error:.2g}", file=sys.stderr)

    # Floor: K and V once; two products over every visible key.
    return Case(
        runs=runs,
        sets=sets,
        floor_reads=lambda i: gathered[i],
        floor_flops=4.0 * DIM * HEADS * batch * mask.sum().item(),
        floor_dtype=scalar,
        skipped=skipped,
    )
