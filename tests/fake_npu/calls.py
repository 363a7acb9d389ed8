"""One small call of every operator."""

from typing import Any

import torch
from torch import Tensor

Call = tuple[tuple[Any, ...], dict[str, Any]]

NODES = [3, 1, 4]  # of each request
PARENTS = [-1, 0, 0, -1, -1, 0, 1, 1]
BATCH, MAX_NODES, VOCAB, BLOCK = len(NODES), 4, 1000, 16


def calls(device: str) -> dict[str, Call]:
    """Arguments of each operator on `device`; the same numbers at every call."""
    generator = torch.Generator().manual_seed(0)

    def ints(values: Any) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    def longs(values: Any) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype).to(device)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator).to(device)

    total = sum(NODES)
    cu_nodes = ints([0, 3, 4, 8])
    table = ints([[0, 1, 2], [3, 4, -1], [5, 6, 7]])
    context = ints([20, 5, 31])
    mask = longs([[1], [3], [5], [1], [1], [3], [7], [11]])  # the ancestors that PARENTS says

    def cache() -> Tensor:
        return normal(8, BLOCK, 2, 64, dtype=torch.float16)

    def rows(heads: int) -> Tensor:
        return normal(total, heads, 64, dtype=torch.float16)

    def free_pages() -> tuple[Tensor, Tensor, Tensor]:
        return ints([[0, -1, -1], [1, 2, -1], [3, -1, -1]]), ints([4, 5, 6, 7, -1, -1]), ints([4])

    tokens = longs([7, 11, 13, 17, 19, 23, 29, 31])
    target, draft = normal(total, VOCAB), normal(total, VOCAB)
    filters = {
        "temperature": torch.tensor([1.0, 0.0, 0.7], device=device),
        "top_k": ints([0, 5, 50]),
        "top_p": torch.tensor([1.0, 0.9, 0.8], device=device),
    }
    path = ints([[0, 2, -1], [0, -1, -1], [0, 1, 3]])
    history = torch.randint(5, (BATCH, 64), generator=generator).to(device)
    emitted = longs([[7, 11, -1, -1], [13, -1, -1, -1], [1, 2, 3, 4]])
    running, limits = torch.zeros(BATCH, dtype=torch.bool, device=device), ints([60, 60, 32])
    out, lse = rows(8), normal(total, 8)
    return {
        "tree_mask": ((ints(PARENTS), cu_nodes, MAX_NODES), {}),
        "tree_select": ((longs([[5, 6, 7, 8]] * 2), -uniform(2, 4), ints([[-1, 0, 0, 1]] * 2), 3), {}),
        "kv_append": ((rows(2), rows(2), cache(), cache(), table, context, cu_nodes), {}),
        "kv_rollback": (([cache(), cache()], table, context.clone(), ints([1, 0, 2]), path), {}),
        "kv_truncate": ((context.clone(), ints([4, 9, 30])), {}),
        "blocks_reserve": ((*free_pages(), ints([16, 20, 3]), ints([1, 4, 20]), BLOCK), {}),
        "blocks_release": ((*free_pages(), ints([16, 3, 0]), BLOCK), {}),
        "tree_attention": (
            (rows(8), cache(), cache(), table, context, cu_nodes, mask),
            {"scale": 0.125, "max_nodes": MAX_NODES},
        ),
        "merge_attention": ((out, lse, rows(8), normal(total, 8)), {}),
        "philox_uniform": ((longs([1, 2, 3]), longs([7, 8, 9]), 9, 1), {}),
        "sample": ((normal(BATCH, VOCAB), uniform(BATCH)), filters),
        "sample_topk": ((normal(BATCH, VOCAB), uniform(BATCH, 3), 3), {}),
        "verify_chain": (
            (target, tokens, cu_nodes, uniform(BATCH, MAX_NODES)),
            {"draft_logits": draft, **filters, "max_nodes": MAX_NODES},
        ),
        "verify_tree": (
            (target, tokens, ints(PARENTS), cu_nodes, uniform(BATCH, MAX_NODES)),
            {"temperature": filters["temperature"], "max_nodes": MAX_NODES},
        ),
        "ngram_propose": ((history, ints([60, 64, 10])), {"min_n": 1, "max_n": 3, "num_draft": 4}),
        "advance": ((history.clone(), ints([10, 20, 30]), running, emitted, ints([1, 0, 3]), longs([3]), limits), {}),
        "adapt_draft_length": ((uniform(BATCH), ints([4, 4, 4]), ints([0, 2, 4])), {}),
    }
