"""SGLang's layouts: its published cases, and plain-Python versions of its walks on random trees."""

import json
import re
import sys
import types
from pathlib import Path

import pytest
import torch

from specdec_ops.integrations import sglang

DATA = Path(__file__).parents[1] / "data"
PAGE = Path(__file__).parents[2] / "docs" / "sglang.md"


def test_the_page_swaps_what_sglang_imports(monkeypatch):
    """By stand-ins of sgl_kernel_npu's modules; the statements are those of SGLang's `eagle_utils`."""
    theirs = "sgl_kernel_npu.sample"
    for name in ("sgl_kernel_npu", theirs, f"{theirs}.verify_tree_greedy"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["sgl_kernel_npu"].sample = sys.modules[theirs]
    sys.modules[theirs].verify_tree_greedy = sys.modules[f"{theirs}.verify_tree_greedy"]
    exec(re.search(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)[1], {})
    names: dict = {}
    exec(f"from {theirs} import chain_speculative_sampling_triton, tree_speculative_sampling_target_only", names)
    exec(f"from {theirs}.verify_tree_greedy import verify_tree_greedy", names)
    assert names["chain_speculative_sampling_triton"] is sglang.chain_speculative_sampling
    assert names["tree_speculative_sampling_target_only"] is sglang.tree_speculative_sampling_target_only
    assert names["verify_tree_greedy"] is sglang.verify_tree_greedy


def published(name: str) -> list[dict]:
    return json.loads((DATA / f"{name}.json").read_text())["cases"]


def empty_links(batch: int, nodes: int) -> list[torch.Tensor]:
    return [torch.full((batch, nodes), -1, dtype=torch.int64) for _ in range(3)]


def empty_outputs(batch: int, nodes: int, width: int) -> list[torch.Tensor]:
    return [
        torch.full((batch * nodes,), -1, dtype=torch.int32),
        torch.full((batch, width), -1, dtype=torch.int32),
        torch.full((batch,), -7, dtype=torch.int32),
    ]


def random_tree(nodes: int, generator: torch.Generator) -> tuple[list[int], list[int], list[int]]:
    """Parents, first children and next siblings; nodes numbered and siblings listed in any order below the root."""
    draw = [int(torch.randint(i, (1,), generator=generator)) for i in range(1, nodes)]
    name = [0, *(torch.randperm(nodes - 1, generator=generator) + 1).tolist()]
    parents = [-1] * nodes
    next_token, next_sibling = [-1] * nodes, [-1] * nodes
    for i, parent in enumerate(draw, 1):
        parents[name[i]] = name[parent]
        next_sibling[name[i]], next_token[name[parent]] = next_token[name[parent]], name[i]
    return parents, next_token, next_sibling


# ---- building


@pytest.mark.parametrize("case", published("tree_build"), ids=lambda case: case["name"])
@pytest.mark.parametrize("mode", list(sglang.TreeMaskMode))
def test_published_trees(case, mode):
    nodes, lengths = case["draft_token_num"], torch.tensor(case["verified_seq_len"])
    batch = len(lengths)
    if mode == sglang.TreeMaskMode.FULL_MASK:
        mask = torch.ones(int(lengths.sum()) * nodes + batch * nodes * nodes, dtype=torch.bool)
    elif mode == sglang.TreeMaskMode.QLEN_ONLY:
        mask = torch.ones(batch * nodes * nodes, dtype=torch.bool)
    else:
        mask = torch.zeros(batch * nodes, dtype=torch.uint8)
    positions, links = torch.empty(batch * nodes, dtype=torch.int64), empty_links(batch, nodes)
    sglang.build_tree_kernel_efficient(
        torch.tensor(case["parent_list"]),
        torch.tensor(case["selected_index"]),
        lengths,
        mask,
        positions,
        *links,
        case["topk"],
        case["depth"],
        nodes,
        mode,
    )
    assert positions.tolist() == case["positions"]
    names = ("retrieve_index", "retrieve_next_token", "retrieve_next_sibling")
    assert [link.tolist() for link in links] == [case[name] for name in names]
    rows = [[[bit == "1" for bit in row] for row in request] for request in case["mask"]]
    if mode == sglang.TreeMaskMode.FULL_MASK:
        wanted = [x for n, r in zip(case["verified_seq_len"], rows, strict=True) for row in r for x in [True] * n + row]
    elif mode == sglang.TreeMaskMode.QLEN_ONLY:
        wanted = [x for request in rows for row in request for x in row]
    else:
        wanted = [sum(bit << i for i, bit in enumerate(row)) for request in rows for row in request]
    assert mask.tolist() == wanted


@pytest.mark.parametrize(("nodes", "dtype"), [(5, torch.uint8), (12, torch.uint16), (24, torch.uint32)])
def test_packed_words_agree_with_the_bits_and_links_lead_back_to_the_tree(nodes, dtype):
    generator = torch.Generator().manual_seed(nodes)
    topk, depth, batch = 4, 5, 3
    scores = topk + (depth - 1) * topk * topk
    parent_list = torch.full((batch, topk * (depth - 1) + 1), -1)
    selected = torch.zeros((batch, nodes - 1), dtype=torch.int64)
    for b in range(batch):
        # Each level continues `topk` candidates of the level before; a node is selected only after its parent.
        level = list(range(topk))
        parent_list[b, 1 : topk + 1] = torch.tensor(level)
        first = topk
        for d in range(1, depth - 1):
            chosen = sorted((torch.randperm(topk * topk, generator=generator)[:topk] + first).tolist())
            parent_list[b, topk * d + 1 : topk * (d + 1) + 1] = torch.tensor(chosen)
            first += topk * topk
        chosen = []
        for candidate in torch.randperm(scores, generator=generator).tolist() * depth:
            group = candidate // topk
            has_parent = group == 0 or int(parent_list[b, group]) in chosen
            if has_parent and candidate not in chosen and len(chosen) < nodes - 1:
                chosen.append(candidate)
        selected[b] = torch.tensor(sorted(chosen))
    lengths = torch.tensor([3, 0, 7])

    def build(mask: torch.Tensor, mode: sglang.TreeMaskMode) -> tuple[torch.Tensor, ...]:
        positions, links = torch.empty(batch * nodes, dtype=torch.int64), empty_links(batch, nodes)
        sglang.build_tree_kernel_efficient(
            parent_list, selected, lengths, mask, positions, *links, topk, depth, nodes, mode
        )
        return mask, positions, *links

    packed = build(torch.zeros(batch * nodes, dtype=dtype), sglang.TreeMaskMode.QLEN_ONLY_BITPACKING)
    bits = build(torch.zeros(batch * nodes * nodes, dtype=torch.bool), sglang.TreeMaskMode.QLEN_ONLY)
    rows = bits[0].view(-1, nodes).tolist()
    assert packed[0].tolist() == [sum(bit << i for i, bit in enumerate(row)) for row in rows]
    assert all(torch.equal(a, b) for a, b in zip(packed[1:], bits[1:], strict=True))
    again = torch.empty(batch * nodes, dtype=torch.int64), *empty_links(batch, nodes)
    sglang.reconstruct_indices_from_tree_mask(bits[0], lengths, *again, batch, nodes)
    assert all(torch.equal(a, b) for a, b in zip(again, bits[1:], strict=True))


def test_a_packed_mask_has_32_bits_at_most():
    links = empty_links(1, 33)
    with pytest.raises(ValueError, match="draft_token_num: expected at most 32"):
        sglang.build_tree_kernel_efficient(
            torch.full((1, 1), -1),
            torch.arange(32)[None],
            torch.zeros(1, dtype=torch.int64),
            torch.zeros(33, dtype=torch.uint32),
            torch.zeros(33, dtype=torch.int64),
            *links,
            32,
            1,
            33,
            sglang.TreeMaskMode.QLEN_ONLY_BITPACKING,
        )


# ---- verification


@pytest.mark.parametrize("case", published("verify_tree_greedy"), ids=lambda case: case["name"])
def test_published_greedy_verification(case):
    candidates = torch.tensor(case["candidates"])
    outputs = empty_outputs(*candidates.shape, case["accept_width"])
    sglang.verify_tree_greedy(
        *outputs,
        candidates,
        *(torch.tensor(case[f"retrieve_{name}"]) for name in ("index", "next_token", "next_sibling")),
        torch.tensor(case["target_predict"]),
    )
    names = ("predicts", "accept_index", "accept_token_num")
    assert [output.tolist() for output in outputs] == [case[name] for name in names]


def walk(tree, tokens, width, nodes, request, accept, last_token):
    """SGLang's walk for one request: (predicts, accept_index, number accepted)."""
    _, next_token, next_sibling = tree
    predicts, index, current = [-1] * nodes, [request * nodes], 0
    for _ in range(1, width):
        child, tried = next_token[current], []
        while child != -1:
            if accept(current, tried, child):
                break
            tried.append(child)
            child = next_sibling[child]
        if child == -1:
            break
        predicts[current] = tokens[child]
        index.append(request * nodes + child)
        current = child
    else:
        tried = []
    predicts[current] = last_token(current, tried)
    return predicts, index + [-1] * (width - len(index)), len(index) - 1


@pytest.mark.parametrize("width", [3, 9])
def test_greedy_walks(width):
    batch, nodes, generator = 40, 9, torch.Generator().manual_seed(1)
    trees = [random_tree(nodes, generator) for _ in range(batch)]
    candidates = torch.randint(5, (batch, nodes), generator=generator)
    predict = torch.randint(5, (batch, nodes), generator=generator)
    outputs = empty_outputs(batch, nodes, width)
    sglang.verify_tree_greedy(
        *outputs,
        candidates,
        torch.arange(batch * nodes).view(batch, nodes),
        torch.tensor([tree[1] for tree in trees]),
        torch.tensor([tree[2] for tree in trees]),
        predict,
    )
    for b in range(batch):
        tokens, choice = candidates[b].tolist(), predict[b].tolist()
        wanted = walk(
            trees[b], tokens, width, nodes, b,
            lambda node, _, child: tokens[child] == choice[node],  # noqa: B023
            lambda node, _: choice[node],  # noqa: B023
        )  # fmt: skip
        assert (outputs[0].view(batch, nodes)[b].tolist(), outputs[1][b].tolist(), int(outputs[2][b])) == wanted
    assert int(outputs[2].max()) >= 2


@pytest.mark.parametrize(
    ("threshold_single", "threshold_acc"), [(1.0, 1.0), (1.0, 0.3), (0.2, 1.0), (0.2, 0.5), (0.0, 0.0)]
)
@pytest.mark.parametrize("width", [3, 8])
def test_target_only_walks(threshold_single, threshold_acc, width):
    batch, nodes, vocab, generator = 60, 8, 11, torch.Generator().manual_seed(2)
    trees = [random_tree(nodes, generator) for _ in range(batch)]
    candidates = torch.stack([torch.randperm(vocab, generator=generator)[:nodes] for _ in range(batch)])
    probs = torch.softmax(torch.randn(batch, nodes, vocab, generator=generator) * 2, -1)
    probs = torch.where(probs < 0.02, 0, probs)
    probs /= probs.sum(-1, keepdim=True)
    coins, final = torch.rand(batch, nodes, generator=generator), torch.rand(batch, generator=generator)
    outputs = empty_outputs(batch, nodes, width)
    before = probs.clone()
    sglang.tree_speculative_sampling_target_only(
        *outputs,
        candidates,
        torch.arange(batch * nodes).view(batch, nodes),
        torch.tensor([tree[1] for tree in trees]),
        torch.tensor([tree[2] for tree in trees]),
        coins,
        final,
        probs,
        torch.zeros_like(probs),
        threshold_single,
        threshold_acc,
    )
    assert torch.equal(probs, before)
    for b in range(batch):
        tokens, p = candidates[b].tolist(), probs[b].double()

        def accept(node, tried, child):
            single = p[node, tokens[child]]  # noqa: B023
            mass = single + sum(p[node, tokens[other]] for other in tried)  # noqa: B023
            return coins[b, node] < mass / max(threshold_acc, 1e-9) or single >= threshold_single  # noqa: B023

        def last_token(node, tried):
            left = p[node].clone()  # noqa: B023
            left[[tokens[other] for other in tried]] = 0  # noqa: B023
            return int((left.cumsum(0) <= final[b] * left.sum()).sum())  # noqa: B023

        wanted = walk(trees[b], tokens, width, nodes, b, accept, last_token)
        assert (outputs[0].view(batch, nodes)[b].tolist(), outputs[1][b].tolist(), int(outputs[2][b])) == wanted
    assert int(outputs[2].max()) == 2 if width == 3 else int(outputs[2].max()) >= 2


def dense(rows: list[dict[str, float]], vocab: int) -> torch.Tensor:
    p = torch.zeros(len(rows), vocab)
    for row, entries in zip(p, rows, strict=True):
        for token, value in entries.items():
            row[int(token)] = value
    return p


@pytest.mark.parametrize("case", published("chain_sampling"), ids=lambda case: case["name"])
def test_published_rejection_sampling(case):
    candidates = torch.tensor([[0, *drafts] for drafts in case["drafts"]])
    batch, nodes = candidates.shape
    outputs = empty_outputs(batch, nodes, nodes)
    sglang.chain_speculative_sampling(
        *outputs,
        candidates,
        torch.arange(batch * nodes).view(batch, nodes),
        None,
        None,
        torch.tensor([[*u, 0] for u in case["uniforms"]]),
        torch.tensor(case["final_uniform"]),
        torch.stack([dense(rows, case["vocab"]) for rows in case["p"]]),
        torch.stack([dense(rows, case["vocab"]) for rows in case["q"]]),
    )
    assert outputs[0].tolist() == [x for row in case["output"] for x in row]
    assert outputs[2].tolist() == case["num_accepted"]
    for b, accepted in enumerate(case["num_accepted"]):
        on_path = [b * nodes + i for i in range(accepted + 1)]
        assert outputs[1][b].tolist() == on_path + [-1] * (nodes - 1 - accepted)


@pytest.mark.parametrize("case", [c for c in published("chain_greedy") if len({len(d) for d in c["drafts"]}) == 1])
def test_published_greedy_chains(case):
    candidates = torch.tensor([[0, *drafts] for drafts in case["drafts"]])
    batch, nodes = candidates.shape
    outputs = empty_outputs(batch, nodes, nodes)
    next_token = torch.tensor([*range(1, nodes), -1]).expand(batch, nodes)
    sglang.verify_tree_greedy(
        *outputs,
        candidates,
        torch.arange(batch * nodes).view(batch, nodes),
        next_token,
        torch.full((batch, nodes), -1),
        torch.tensor([[*targets, last] for targets, last in zip(case["targets"], case["bonus"], strict=True)]),
    )
    assert outputs[0].tolist() == [x for row in case["output"] for x in row]


def test_block_verification_accepts_at_least_as_many():
    batch, nodes, vocab, generator = 200, 6, 9, torch.Generator().manual_seed(3)
    p, q = torch.softmax(torch.randn(2, batch, nodes, vocab, generator=generator) * 1.5, -1)
    drafts = torch.stack([q[:, i].multinomial(1, generator=generator)[:, 0] for i in range(nodes - 1)], 1)
    candidates = torch.cat([torch.zeros(batch, 1, dtype=torch.int64), drafts], 1)
    accepted = {}
    for block in (False, True):
        outputs = empty_outputs(batch, nodes, nodes)
        uniforms = torch.rand(batch, nodes, generator=torch.Generator().manual_seed(4))
        index = torch.arange(batch * nodes).view(batch, nodes)
        sglang.chain_speculative_sampling(
            *outputs, candidates, index, None, None, uniforms, uniforms[:, 0], p, q, block_verification=block
        )
        accepted[block] = int(outputs[2].sum())
    assert accepted[True] > accepted[False]


def test_lists_that_make_no_tree_are_harmless():
    outputs = empty_outputs(2, 4, 4)
    next_token = torch.tensor([[1, 2, 1, 99], [1, -5, 3, 2]])
    next_sibling = torch.tensor([[7, 1, -1, 3], [-1, 2, 1, -1]])
    sglang.verify_tree_greedy(
        *outputs,
        torch.tensor([[1, 1, 1, 1], [1, 1, 1, 1]]),
        torch.arange(8).view(2, 4),
        next_token,
        next_sibling,
        torch.ones(2, 4, dtype=torch.int64),
    )
    assert ((outputs[2] >= 0) & (outputs[2] < 4)).all()


# ---- the cache


@pytest.mark.parametrize("case", published("cache_rows"))
def test_published_cache_rows(case):
    locations, accepted = torch.tensor(case["out_cache_loc"]), torch.tensor(case["accept_index"])
    nodes = len(locations) // len(accepted)
    layers = [torch.arange(9.0).view(9, 1, 1).expand(9, 2, 3).contiguous() + 100 * i for i in range(4)]
    source = [locations[row[row >= 0]] for row in accepted]
    target = [locations[b * nodes : b * nodes + len(row)] for b, row in enumerate(source)]
    sglang.move_kv_cache(layers[:2], layers[2:], torch.cat(target), torch.cat(source))
    assert layers[0][torch.cat(target), 0, 0].tolist() == case["kept"]
    for i, layer in enumerate(layers):
        assert torch.equal(layer, layers[0] + 100 * i)


def test_move_kv_cache_over_rows_of_any_type():
    generator = torch.Generator().manual_seed(5)
    caches = [torch.randn(50, 2, 8, generator=generator).to(dtype) for dtype in (torch.bfloat16, torch.float32)]
    order = torch.randperm(50, generator=generator)
    target, source = order[:20], order[20:40].int()
    wanted = [cache.clone() for cache in caches]
    for cache in wanted:
        cache[target] = cache[source.long()]
    sglang.move_kv_cache(caches[:1], caches[1:], target, source)
    sglang.move_kv_cache(caches[:1], caches[1:], target[:0], source[:0])
    assert all(torch.equal(a, b) for a, b in zip(caches, wanted, strict=True))


@pytest.mark.parametrize("spare", [0, 5])
def test_cache_locations_go_into_the_table_and_back(spare):
    generator = torch.Generator().manual_seed(6)
    table = torch.randint(1000, (10, 30), generator=generator, dtype=torch.int32)
    rows, start = torch.tensor([7, 2, 5, 0]), torch.tensor([3, 0, 29, 10])
    end = torch.tensor([7, 0, 30, 18])
    locations = torch.arange(2000, 2000 + int((end - start).sum()) + spare)
    wanted, taken = table.clone(), 0
    for row, first, last in zip(rows, start, end, strict=True):
        wanted[row, first:last] = locations[taken : taken + last - first].int()
        taken += int(last - first)
    sglang.assign_req_to_token_pool(rows, table, start, end, locations, 4)
    assert torch.equal(table, wanted)
    back = sglang.assign_extend_cache_locs(rows, table, start, end, 4, 8, "cpu")
    assert back.shape == (32,) and back.dtype == torch.int64
    assert torch.equal(back[:taken], locations[:taken])


def test_no_cache_locations():
    table = torch.arange(12, dtype=torch.int32).view(3, 4)
    nothing = torch.tensor([2, 2])
    sglang.assign_req_to_token_pool(torch.tensor([0, 2]), table, nothing, nothing, torch.tensor([5, 6]), 2)
    assert table.flatten().tolist() == list(range(12))


# ---- no host reads


def test_nothing_is_read_on_the_host():
    """What traces into one graph has read no tensor: a read would break the graph, which `fullgraph` forbids."""
    batch, nodes, vocab, generator = 2, 5, 7, torch.Generator().manual_seed(7)
    trees = [random_tree(nodes, generator) for _ in range(batch)]
    links = torch.arange(batch * nodes).view(batch, nodes), *(torch.tensor([t[i] for t in trees]) for i in (1, 2))
    candidates = torch.randint(vocab, (batch, nodes), generator=generator)
    p, q = torch.softmax(torch.randn(2, batch, nodes, vocab, generator=generator), -1)
    uniforms = torch.rand(batch, nodes, generator=generator)
    mask = torch.ones(nodes, nodes, dtype=torch.bool).tril().repeat(batch, 1, 1).flatten()
    parent_list, selected = torch.tensor([[-1, 0, 1]] * batch), torch.tensor([[0, 1, 2]] * batch)
    lengths, positions = torch.tensor([3, 5]), torch.empty(batch * 4, dtype=torch.int64)
    full_mask = torch.ones(8 * 4 + batch * 16, dtype=torch.bool)
    table = torch.arange(40, dtype=torch.int32).view(4, 10)
    caches = [torch.randn(10, 2, 4), torch.randn(10, 2, 4)]
    target, source = torch.tensor([0, 1]), torch.tensor([2, 3])

    def everything() -> torch.Tensor:
        outputs = empty_outputs(batch, nodes, 3)
        sglang.verify_tree_greedy(*outputs, candidates, *links, candidates)
        sglang.tree_speculative_sampling_target_only(
            *outputs, candidates, *links, uniforms, uniforms[:, 0], p, q, 0.5, 0.7
        )
        outputs = empty_outputs(batch, nodes, nodes)
        sglang.chain_speculative_sampling(*outputs, candidates, *links, uniforms, uniforms[:, 0], p, q)
        sglang.reconstruct_indices_from_tree_mask(
            mask, lengths, torch.empty(batch * nodes, dtype=torch.int64), *empty_links(batch, nodes), batch, nodes
        )
        sglang.build_tree_kernel_efficient(
            parent_list, selected, lengths, full_mask, positions, *empty_links(batch, 4), 2, 2, 4, 0
        )
        sglang.assign_req_to_token_pool(target, table, lengths, lengths + 2, torch.arange(4), 2)
        sglang.move_kv_cache(caches[:1], caches[1:], target, source)
        return sglang.assign_extend_cache_locs(target, table, lengths, lengths + 2, 2, 2, "cpu")

    wanted = everything()
    assert torch.equal(torch.compile(everything, fullgraph=True, backend="eager")(), wanted)
