"""tree_attention over a paged cache with a tree mask, heads 32/8 of 128.

Peers: torch SDPA with the mask over gathered, contiguous K and V, plain and with the GQA group folded into rows; vLLM's
paged attention (a chain: it knows no trees); SGLang's extend attention with the tree mask, or its decode attention.
"""

import math
import sys
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


class Vllm:
    """vLLM's operator on its own cache layout; cache, block table and schedule are prepared outside the timing."""

    def __init__(self, operators: Any, q: Tensor, k: Tensor, v: Tensor) -> None:
        self.operators, self.q, self.out = operators, q, torch.empty_like(q)
        batch, tokens = k.shape[:2]
        amx = torch.cpu._is_amx_tile_supported() and q.dtype == torch.bfloat16
        isa = "amx" if amx else "vec"  # as vLLM chooses for this block size
        blocks = math.ceil(tokens / BLOCK)
        cache = torch.zeros(batch * blocks, KV_HEADS, 2 * BLOCK, DIM, dtype=q.dtype)
        self.k_cache, self.v_cache = cache.chunk(2, dim=2)
        self.block_table = torch.randperm(batch * blocks, dtype=torch.int32).view(batch, blocks)
        slot = torch.arange(tokens)
        slots = self.block_table[:, slot // BLOCK].long() * BLOCK + slot % BLOCK
        operators.cpu_attn_reshape_and_cache(
            k.flatten(0, 1), v.flatten(0, 1), self.k_cache, self.v_cache, slots.view(-1), isa
        )
        self.starts = torch.arange(batch + 1, dtype=torch.int32) * (q.shape[0] // batch)
        self.lengths = torch.full((batch,), tokens, dtype=torch.int32)
        self.schedule = operators.get_scheduler_metadata(
            batch, HEADS, KV_HEADS, DIM, self.lengths, q.dtype, self.starts, True, -1, isa, True, None
        )

    def __call__(self) -> Tensor:
        self.operators.cpu_attention_with_kv_cache(
            self.q,
            self.k_cache,
            self.v_cache,
            self.out,
            self.starts,
            self.lengths,
            SCALE,
            True,  # causal
            None,  # alibi
            -1,  # window
            self.block_table,
            0.0,  # softcap
            self.schedule,
            None,  # sinks
            None,  # per-request causality
        )
        return self.out


class Sglang:
    """SGLang's operators on a token pool with the tokens of each block contiguous."""

    def __init__(self, operators: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> None:
        self.operators, self.q, self.out = operators, q, torch.empty_like(q)
        batch, tokens = k.shape[:2]
        self.nodes = q.shape[0] // batch
        context = tokens - self.nodes
        blocks = math.ceil(tokens / BLOCK)
        order = torch.randperm(batch * blocks).view(batch, blocks)
        slot = torch.arange(tokens)
        self.slots = (order[:, slot // BLOCK] * BLOCK + slot % BLOCK).int()
        self.k_pool, self.v_pool = torch.zeros(2, batch * blocks * BLOCK, KV_HEADS, DIM, dtype=q.dtype)
        self.k_pool[self.slots.long()], self.v_pool[self.slots.long()] = k, v
        self.k_new, self.v_new = (x[:, context:].flatten(0, 1).contiguous() for x in (k, v))
        self.mask = mask.expand(batch, -1, -1).contiguous()
        self.requests = torch.arange(batch)
        self.lengths = torch.full((batch,), tokens)
        self.new_lengths = torch.full((batch,), self.nodes, dtype=torch.int32)
        self.starts = (torch.arange(batch) * self.nodes).int()
        # Scratch of the decode operator: its split of the context into 8 is SGLang's default.
        self.partial = torch.empty(batch, HEADS, 8, DIM + 1)

    def __call__(self) -> Tensor:
        rest = (SCALE, 0.0, False, -1, None, None)  # scale, softcap, cross attention, window, encoder lengths, sinks
        if self.nodes == 1:
            self.operators.decode_attention_cpu(
                self.q,
                self.k_pool,
                self.v_pool,
                self.out,
                None,
                None,
                None,
                self.partial,
                self.slots,
                self.requests,
                self.lengths,
                *rest,
            )
        else:
            self.operators.extend_attention_cpu(
                self.q,
                self.k_new,
                self.v_new,
                self.out,
                self.k_pool,
                self.v_pool,
                self.slots,
                self.requests,
                self.lengths,
                self.new_lengths,
                self.starts,
                self.nodes,
                *rest,
                self.mask,
            )
        return self.out


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
        vllm = [Vllm(operators, q, k, v) for k, v in keys_values]
        runs["vllm"] = lambda i: vllm[i]()
        if scalar == torch.float32:
            skipped["sglang"] = "its operators take no float32"
        else:
            sglang = [Sglang(operators, q, k, v, tree) for k, v in keys_values]
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
