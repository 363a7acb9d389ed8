import math

import pytest
import torch
from backends import without_reference
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import specdec_ops
import specdec_ops.reference as reference

SETTINGS = settings(
    max_examples=80, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def ints(values, device="cpu") -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


@st.composite
def trees(draw, size: int) -> list[int]:
    """Parents before children; sometimes a parent that is none."""
    parents = [-1] + [draw(st.integers(0, i - 1)) for i in range(1, size)]
    for i in draw(st.lists(st.integers(0, max(0, size - 1)), max_size=2)):
        parents[i] = draw(st.sampled_from([-1, -9, i, i + 1, size, 2**31 - 1, -(2**31)]))
    return parents[:size]


# tree_mask


def test_mask_of_a_published_tree(backend):
    """SGLang's build_tree_kernel_efficient, topk 2, depth 2, four nodes; and a chain after it."""
    parents = ints([-1, 0, 0, 1, -1, 0, 1], backend.device)
    mask, depth = backend.tree_mask(parents, ints([0, 4, 7], backend.device), 5)
    assert mask.tolist() == [[0b0001], [0b0011], [0b0101], [0b1011], [0b001], [0b011], [0b111]]
    assert depth.tolist() == [0, 1, 1, 2, 0, 1, 2]


@given(st.data())
@SETTINGS
def test_mask_equals_the_reference(backend, data):
    sizes = data.draw(st.lists(st.sampled_from([0, 1, 2, 5, 63, 64, 65, 130]), max_size=4))
    parents = ints([parent for size in sizes for parent in data.draw(trees(size))])
    cu = torch.cat([ints([0]), ints(sizes).cumsum(0).int()])
    max_nodes = data.draw(st.integers(max([1, *sizes]), 200))
    if data.draw(st.booleans()):  # bounds that do not hold
        max_nodes = data.draw(st.integers(1, 70))
        cu[data.draw(st.integers(0, len(sizes)))] = data.draw(st.sampled_from([-5, 1, 3, 90, 2**31 - 1, -(2**31)]))
    actual = backend.tree_mask(parents.to(backend.device), cu.to(backend.device), max_nodes)
    for a, b in zip(actual, reference.tree_mask(parents, cu, max_nodes), strict=True):
        assert a.dtype == b.dtype and torch.equal(a.cpu(), b)


def test_mask_is_ancestors_or_self_whatever_the_batch(backend):
    torch.manual_seed(0)
    sizes = [512, 1, 200, 64]
    trees = [[-1] + [int(torch.randint(0, i, ())) for i in range(1, size)] for size in sizes]
    cu = [sum(sizes[:b]) for b in range(len(sizes) + 1)]
    parents = ints([parent for tree in trees for parent in tree], backend.device)
    mask, depth = backend.tree_mask(parents, ints(cu, backend.device), 512)
    for b, tree in enumerate(trees):
        rows = slice(cu[b], cu[b + 1])
        alone = backend.tree_mask(parents[rows].clone(), ints([0, sizes[b]], backend.device), 512)
        assert torch.equal(alone[0], mask[rows]) and torch.equal(alone[1], depth[rows])
        for i, (words, level) in enumerate(zip(mask[rows].tolist(), depth[rows].tolist(), strict=True)):
            path, node = set(), i
            while node >= 0:
                path.add(node)
                node = tree[node]
            assert {j for j in range(512) if words[j // 64] >> (j % 64) & 1} == path
            assert level == len(path) - 1


# tree_select


def test_select_keeps_the_best_with_their_ancestors(backend):
    tokens = torch.tensor([[9, 1, 2, 3, 4, 5], [8, 1, 2, 3, 4, 5]], device=backend.device)
    scores = torch.tensor([[0.0, -0.5, -2.0, -0.7, -0.9, -2.5], [0.0, -3.0, -1.0, -0.1, -1.0, -1.0]]).to(backend.device)
    parents = ints([[-1, 0, 0, 1, 1, 2], [-1, 0, 0, 1, 2, 2]], backend.device)
    out_tokens, out_parents, cu = backend.tree_select(tokens, scores, parents, 4)
    # Of request 0 the best four are 0 1 3 4. In request 1 node 3 counts with its parent's -3.0, and the tie of nodes
    # 2, 4, 5 at -1.0 goes to the lower indices.
    assert out_tokens.tolist() == [9, 1, 3, 4, 8, 2, 4, 5]
    assert out_parents.tolist() == [-1, 0, 1, 1, -1, 0, 1, 1]
    assert cu.tolist() == [0, 4, 8]


def test_select_packs_requests_with_few_candidates(backend):
    tokens = torch.tensor([[7, -1, 2, 3], [8, 1, 2, 3], [-1, 1, 2, 3]], device=backend.device)
    nan, inf = math.nan, math.inf
    scores = torch.tensor([[nan, -1, -1, -1], [0, nan, -1, -inf], [0, -3, -2, -1]], device=backend.device)
    parents = ints([[-1, 0, 0, 1], [-1, 0, 1, 0], [-1, 0, 2, 1]], backend.device)
    out_tokens, out_parents, cu = backend.tree_select(tokens, scores, parents, 3)
    assert cu.tolist() == [0, 2, 3, 6]
    assert out_tokens.tolist() == [7, 2, 8, -1, 1, 3, -1, -1, -1]
    assert out_parents.tolist() == [-1, 0, -1, -1, 0, 1, -1, -1, -1]


@given(st.data())
@SETTINGS
def test_select_equals_the_reference(backend, data):
    batch, size = data.draw(st.integers(0, 4)), data.draw(st.integers(1, 24))
    numbers = st.sampled_from([0.0, -0.0, -0.25, -0.5, -1.0, -1.5, -2.0, -1e30, -math.inf, math.nan, 1.0])
    scores = torch.tensor(data.draw(st.lists(numbers, min_size=batch * size, max_size=batch * size)))
    parents = ints([data.draw(trees(size)) for _ in range(batch)]).reshape(batch, size)
    ids = st.integers(-1, 9) | st.integers(0, 2**40)
    tokens = torch.tensor(data.draw(st.lists(ids, min_size=batch * size, max_size=batch * size)), dtype=torch.int64)
    tokens, scores = tokens.reshape(batch, size), scores.reshape(batch, size)
    num_nodes = data.draw(st.integers(1, size + 3))
    actual = backend.tree_select(*(x.to(backend.device) for x in (tokens, scores, parents)), num_nodes)
    for a, b in zip(actual, reference.tree_select(tokens, scores, parents, num_nodes), strict=True):
        assert a.dtype == b.dtype and torch.equal(a.cpu(), b)


def test_select_of_cumulative_scores_is_the_plain_top_k(backend):
    """As EAGLE-2 states it: scores fall along a path, so that the best nodes are a tree already."""
    torch.manual_seed(0)
    batch, size, num_nodes = backend.scale((30, 300, 60), (9, 40, 12))
    tokens = torch.randint(0, 1000, (batch, size))
    parents = torch.stack([torch.tensor([-1] + [int(torch.randint(0, i, ())) for i in range(1, size)])] * batch)
    step, scores = -torch.rand(batch, size), torch.zeros(batch, size)
    for i in range(1, size):
        scores[:, i] = scores.gather(1, parents[:, i : i + 1])[:, 0] + step[:, i]
    arguments = [x.to(backend.device) for x in (tokens, scores, parents.int())]
    out_tokens, out_parents, cu = backend.tree_select(*arguments, num_nodes)
    best = scores.topk(num_nodes, 1).indices.sort(1).values
    assert cu.tolist() == list(range(0, (batch + 1) * num_nodes, num_nodes))
    assert torch.equal(out_tokens.cpu().view(batch, num_nodes), tokens.gather(1, best))
    out_parents = out_parents.cpu().view(batch, num_nodes).long()
    assert torch.equal(best.gather(1, out_parents[:, 1:]), parents.gather(1, best[:, 1:]))
    for b in range(0, batch, 7):
        alone = backend.tree_select(*(x[b : b + 1] for x in arguments), num_nodes)
        assert torch.equal(alone[0], out_tokens.view(batch, num_nodes)[b])


# arguments, tracing


@without_reference
def test_bad_arguments(backend):
    parents, cu = ints([-1, 0], backend.device), ints([0, 2], backend.device)
    with pytest.raises(ValueError, match=r"^parents: expected dtype int32, got int64"):
        backend.tree_mask(parents.long(), cu, 2)
    with pytest.raises(ValueError, match=r"^max_nodes: expected 1 to 2147483647, got 0"):
        backend.tree_mask(parents, cu, 0)
    with pytest.raises(ValueError, match=r"^cu_nodes: expected batch \+ 1 elements, got none"):
        backend.tree_mask(parents, cu[:0], 2)
    scores = torch.zeros(3, 2, device=backend.device)
    tokens = scores.long()
    with pytest.raises(ValueError, match=r"^scores: expected shape \[3, 2\], got \[3, 3\]"):
        backend.tree_select(tokens, scores[:, [0, 1, 1]], tokens.int(), 2)
    with pytest.raises(ValueError, match=r"^parents_in: expected a contiguous tensor"):
        backend.tree_select(tokens, scores, scores.int().T.contiguous().T, 2)
    with pytest.raises(ValueError, match=r"^num_nodes: expected 1 to 715827882, got 715827883"):
        backend.tree_select(tokens, scores, tokens.int(), 715827883)


def test_opcheck_and_compile():
    parents, cu = ints([-1, 0, 0, -1]), ints([0, 3, 4])
    tokens, scores = torch.arange(8).reshape(2, 4), -torch.arange(8.0).reshape(2, 4)
    parents_in = ints([[-1, 0, 0, 1]] * 2)
    torch.library.opcheck(torch.ops.specdec.tree_mask, (parents, cu, 70))
    torch.library.opcheck(torch.ops.specdec.tree_select, (tokens, scores, parents_in, 3))

    def propose(tokens, scores, parents_in):
        out_tokens, parents, cu = specdec_ops.tree_select(tokens, scores, parents_in, 3)
        return out_tokens, *specdec_ops.tree_mask(parents, cu, 3)

    compiled = torch.compile(propose, fullgraph=True, backend="aot_eager")(tokens, scores, parents_in)
    expected = propose(tokens, scores, parents_in)
    assert all(torch.equal(a, b) for a, b in zip(compiled, expected, strict=True))
