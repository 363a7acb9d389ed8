"""The paged KV state of all layers of all requests, at fixed addresses and with fixed shapes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from specdec_ops import ops


class PagePool:
    """Which pages of the caches hold the tokens of which request; caches of several models may share one pool.

    A request takes the pages for its whole life when it is admitted and gives them back when it is retired, so that
    no step can run out of pages.
    """

    def __init__(self, max_requests: int, max_len: int, block_size: int, num_blocks: int, device: torch.device) -> None:
        self.block_size, self.num_blocks = block_size, num_blocks
        self.block_table = torch.full((max_requests, self.blocks_for(max_len)), -1, dtype=torch.int32, device=device)
        self.free_list = torch.arange(num_blocks - 1, -1, -1, dtype=torch.int32, device=device)
        self.num_free = torch.full((1,), num_blocks, dtype=torch.int32, device=device)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def reserve(self, num_tokens: Tensor) -> Tensor:
        """Gives each request pages for `num_tokens` (int32 `[B]`, 0: leave it alone); returns the status bits."""
        none = torch.zeros_like(num_tokens)
        return ops.blocks_reserve(self.block_table, self.free_list, self.num_free, none, num_tokens, self.block_size)

    def release(self, retired: Tensor) -> None:
        """Takes back all pages of the requests where `retired` (bool `[B]`) holds."""
        kept = torch.where(retired, 0, self.block_table.shape[1] * self.block_size).int()
        ops.blocks_release(self.block_table, self.free_list, self.num_free, kept, self.block_size)


class PagedCache:
    """Keys and values of every layer of one model, `[num_blocks, block_size, heads, head size]` each.

    A layer's tensors are made when its first keys come by: their shape tells the heads this process holds (which under
    tensor parallelism the configuration does not) and the sizes of keys and values.
    """

    def __init__(self, pool: PagePool, shared_layers: dict[int, int] | None = None) -> None:
        self.pool = pool
        self.shared_layers = shared_layers or {}  # layers without keys of their own -> the layer whose they read
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}
        self.tensors: list[Tensor] = []  # of all layers

    def layer(self, index: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The caches of layer `index`, made for rows like `key` and `value` `[N, heads, head size]` at first."""
        if index not in self.layers:
            pages = (self.pool.num_blocks, self.pool.block_size)
            self.layers[index] = (
                key.new_zeros((*pages, *key.shape[1:])),
                value.new_zeros((*pages, *value.shape[1:])),
            )
            self.tensors += self.layers[index]
        return self.layers[index]

    def append(self, index: int, key: Tensor, value: Tensor, nodes: "Nodes") -> None:
        k_cache, v_cache = self.layer(index, key, value)
        new = nodes.rest or nodes
        ops.kv_append(key, value, k_cache, v_cache, new.block_table, new.context_lens, new.cu_nodes)

    def attend(
        self, index: int, query: Tensor, nodes: "Nodes", scale: float, softcap: float, window: int, sinks: Tensor | None
    ) -> Tensor:
        k_cache, v_cache = self.layers[index]
        if nodes.rest is not None:  # rows for the nodes that do not run, whose results are dropped
            n = nodes.rest.max_nodes
            padding = (0, 0, 0, 0, nodes.max_nodes - n, 0)
            query = torch.nn.functional.pad(query.unflatten(0, (-1, n)), padding).flatten(0, 1)
        out, _ = ops.tree_attention(
            query, k_cache, v_cache, nodes.block_table, nodes.context_lens, nodes.cu_nodes, nodes.mask,
            scale=scale, softcap=softcap, window=window, depth=nodes.depth, sinks=sinks, max_nodes=nodes.max_nodes,
        )  # fmt: skip
        return out if nodes.rest is None else out.unflatten(0, (-1, nodes.max_nodes))[:, -n:].flatten(0, 1)


@dataclass
class Nodes:
    """What one forward runs over: `N` nodes of `B` requests behind their committed context, as the operators take it.

    `mask` and `depth` describe trees; None stands for chains. Where a part of each tree has run before and is in the
    cache, `rest` are the last nodes of each, which run now, as nodes behind all the others.
    """

    block_table: Tensor
    context_lens: Tensor
    cu_nodes: Tensor
    max_nodes: int
    mask: Tensor | None = None
    depth: Tensor | None = None
    rest: "Nodes | None" = None
