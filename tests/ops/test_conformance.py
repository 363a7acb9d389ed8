"""Published cases of trees and of the cache, straight against the operators; the layouts are translated here.

The published chains and greedy trees are in `test_verify_chain.py` and `test_verify_tree.py`, beside what else is
known of verification.
"""

import json
from pathlib import Path

import pytest
import torch

DATA = Path(__file__).parents[1] / "data"


def published(name: str) -> list[dict]:
    return json.loads((DATA / f"{name}.json").read_text())["cases"]


@pytest.mark.parametrize("case", published("tree_build"), ids=lambda case: case["name"])
def test_published_trees(backend, case):
    nodes, lengths = case["draft_token_num"], case["verified_seq_len"]
    parents = []
    for parent_list, selected in zip(case["parent_list"], case["selected_index"], strict=True):
        groups = [candidate // case["topk"] for candidate in selected]
        parents += [-1] + [0 if group == 0 else selected.index(parent_list[group]) + 1 for group in groups]
    mask, depth = backend.tree_mask(
        torch.tensor(parents, dtype=torch.int32, device=backend.device),
        torch.arange(0, nodes * (len(lengths) + 1), nodes, dtype=torch.int32, device=backend.device),
        nodes,
    )
    bits = [format(word, f"0{nodes}b")[::-1] for word in mask[:, 0].tolist()]
    assert bits == [row for request in case["mask"] for row in request]
    context = torch.tensor(lengths).repeat_interleave(nodes)
    assert (depth.cpu() + context).tolist() == case["positions"]


@pytest.mark.parametrize("case", published("cache_rows"))
def test_published_cache_rows(backend, case):
    """Pages of one token at the published locations: after the roll-back the kept rows come first, in order."""
    locations, accept_index = case["out_cache_loc"], case["accept_index"]
    batch = len(accept_index)
    nodes = len(locations) // batch
    accepted = [[index - b * nodes for index in row if index >= 0] for b, row in enumerate(accept_index)]
    path = torch.tensor([row + [-1] * (nodes - len(row)) for row in accepted], dtype=torch.int32)
    table = torch.tensor(locations, dtype=torch.int32).view(batch, nodes)
    cache = torch.arange(len(locations), dtype=torch.float32).view(-1, 1, 1, 1).repeat(1, 1, 2, 4).to(backend.device)
    lengths = torch.zeros(batch, dtype=torch.int32, device=backend.device)
    num_accepted = torch.tensor([len(row) - 1 for row in accepted], dtype=torch.int32)
    backend.kv_rollback(
        [cache], table.to(backend.device), lengths, num_accepted.to(backend.device), path.to(backend.device)
    )
    rows = [table[b, : len(row)] for b, row in enumerate(accepted)]
    assert cache[torch.cat(rows).long().to(backend.device)][:, 0, 0, 0].tolist() == case["kept"]
    assert lengths.tolist() == [len(row) for row in accepted]
    assert sorted(set(locations) - set(case["kept"])) == case["freed"]
