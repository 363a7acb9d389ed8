"""What is particular to trees; what chains and trees share is in test_verify.py."""

from dataclasses import replace

import pytest
import torch
from verification import TREE_RULES, assert_agrees, conformance, random_case


def parents_of(next_token: list[int], next_sibling: list[int]) -> list[int]:
    """From first children and next siblings, as SGLang writes a tree."""
    parents = [-1] * len(next_token)
    for node, child in enumerate(next_token):
        while child >= 0:
            parents[child], child = node, next_sibling[child]
    return parents


@pytest.mark.parametrize("case", conformance("verify_tree_greedy"), ids=lambda case: case["name"])
@pytest.mark.parametrize("rule", TREE_RULES)
def test_published_greedy_trees(backend, case, rule):
    batch, nodes = len(case["candidates"]), len(case["candidates"][0])
    parents = [
        parents_of(*tree) for tree in zip(case["retrieve_next_token"], case["retrieve_next_sibling"], strict=True)
    ]
    logits = torch.zeros(batch * nodes, 100)
    logits[torch.arange(batch * nodes), torch.tensor(case["target_predict"]).flatten()] = 5
    tokens, num_accepted, path, _, status = backend.verify_tree(
        logits.to(backend.device),
        torch.tensor(case["candidates"], device=backend.device).flatten(),
        torch.tensor(parents, dtype=torch.int32, device=backend.device).flatten(),
        torch.arange(0, batch * nodes + 1, nodes, dtype=torch.int32, device=backend.device),
        torch.rand(batch, nodes, device=backend.device),
        temperature=torch.zeros(batch, device=backend.device),
        rule=rule,
        max_nodes=nodes,
    )
    predicts, accept_index = [-1] * (batch * nodes), []
    for b in range(batch):
        accepted = [b * nodes + node for node in path[b].tolist() if node >= 0]
        for node, token in zip(accepted, tokens[b].tolist(), strict=False):
            predicts[node] = token
        accept_index.append(accepted + [-1] * (case["accept_width"] - len(accepted)))
    assert predicts == case["predicts"]
    assert accept_index == case["accept_index"]
    assert num_accepted.tolist() == case["accept_token_num"]
    assert not status.any()


MALFORMED = [
    [-1, 0, 5, 1, 2],  # after its child
    [-1, 2, 1, 0, 3],  # a cycle
    [-1, 1, 0, 2, 1],  # its own parent
    [-1, -1, 0, 1, 2],  # two roots
    [0, 0, 1, 2, 3],  # the root has a parent
    [-1, 0, -5, 2, 1],
    [-1, 0, 1 << 30, 2, 1],
    [-1, 0, -(1 << 31), 0, 3],
    [4, 3, 2, 1, 0],
]


@pytest.mark.parametrize("rule", TREE_RULES)
@pytest.mark.parametrize("filters", [True, False])
def test_malformed_trees(backend, rule, filters):
    copies = backend.scale(2, 1)
    case = random_case("verify_tree", rule, sizes=[5] * copies * len(MALFORMED), vocab=17, filters=filters)
    case.parents = torch.tensor(MALFORMED, dtype=torch.int32).repeat(copies, 1).flatten()
    out = assert_agrees(case, backend, backend.device)
    assert (out["status"] == 8).all()


def test_the_rest_of_a_malformed_tree_works(backend):
    case = random_case("verify_tree", "target_only", sizes=[5], vocab=17)
    case = replace(
        case,
        parents=torch.tensor([-1, 3, 0, 2, 1], dtype=torch.int32),
        tokens=torch.tensor([0, 1, 2, 3, 4]),
        target_logits=torch.eye(17)[[2, 0, 3, 9, 0]],
        options={"temperature": torch.zeros(1)},
    )
    out = case(backend, backend.device)
    assert out["tokens"].tolist() == [[2, 3, 9, -1, -1]] and out["path"].tolist() == [[0, 2, 3, -1, -1]]
    assert out["status"].tolist() == [8]


def test_typical_by_hand(backend):
    p = torch.tensor([0.5, 0.3, 0.15, 0.05])  # exp(-entropy) = 0.3194
    tree = [(-1, 0), (0, 3), (1, 0), (2, 0), (0, 1), (4, 3), (0, 2), (6, 0), (6, 1)]  # parent, token
    parents, tokens = torch.tensor(tree).T

    def verify(threshold: float, alpha: float) -> tuple[list[int], list[int]]:
        _, _, path, logprobs, _ = backend.verify_tree(
            p.log().repeat(len(tree), 1).to(backend.device),
            tokens.contiguous().to(backend.device),
            parents.int().to(backend.device),
            torch.tensor([0, len(tree)], dtype=torch.int32, device=backend.device),
            torch.full((1, len(tree)), 0.9, device=backend.device),
            rule="typical",
            posterior_threshold=threshold,
            posterior_alpha=alpha,
            max_nodes=len(tree),
        )
        return [i for i in path[0].tolist() if i >= 0], logprobs[0].tolist()

    path, logprobs = verify(0.09, 0.3)  # above 0.09: all but token 3
    assert path == [0, 6, 7]  # 8 is as deep
    assert logprobs[:3] == pytest.approx(torch.tensor([0.15, 0.5, 0.15]).log().tolist(), abs=1e-5)  # 0.9 draws token 2
    assert verify(0.04, 0.3)[0] == [0, 1, 2, 3]
    assert verify(0.9, 0.3)[0] == [0, 6, 7]  # above 0.0958
    assert verify(0.9, 0.48)[0] == [0, 4]  # above 0.1533
    assert verify(0.9, 0.95)[0] == [0]  # above 0.3034


@pytest.mark.parametrize("rule", ["recursive", "traversal"])
@pytest.mark.parametrize("bad", [1, 2])
def test_the_row_of_a_rejected_leaf_is_not_used(backend, rule, bad):
    p = torch.tensor([0.9, 0.05, 0.05]).log().repeat(3, 1)
    p[bad] = torch.nan
    tokens, _, path, _, status = backend.verify_tree(
        p.to(backend.device),
        torch.tensor([0, 1, 2], device=backend.device),
        torch.tensor([-1, 0, 0], dtype=torch.int32, device=backend.device),
        torch.tensor([0, 3], dtype=torch.int32, device=backend.device),
        torch.tensor([[0.5, 0.5, 0.5]], device=backend.device),
        rule=rule,
        max_nodes=3,
    )
    assert (tokens[0, 0].item(), path[0].tolist(), status.tolist()) == (0, [0, -1, -1], [0])


@pytest.mark.parametrize(
    ("of_tree", "of_chain"), [("recursive", "rejection"), ("traversal", "block"), ("typical",) * 2]
)
@pytest.mark.parametrize("random_drafts", [True, False])
def test_a_chain_is_a_tree(backend, of_tree, of_chain, random_drafts):
    sizes = [7] * backend.scale(30, 2)
    case = random_case("verify_chain", of_chain, sizes=sizes, vocab=29, random_drafts=random_drafts)
    chain = case(backend, backend.device)
    tree = replace(case, operator="verify_tree", rule=of_tree)(backend, backend.device)
    for name in ("tokens", "num_accepted", "status"):
        assert torch.equal(tree[name], chain[name])
    torch.testing.assert_close(tree["logprobs"], chain["logprobs"])


@pytest.mark.parametrize("rule", TREE_RULES)
def test_siblings_with_the_same_token(backend, rule):
    """The rules call for distinct siblings; others still give a defined result."""
    requests = backend.scale(12, 4)
    case = random_case("verify_tree", rule, sizes=[7] * requests, vocab=11)
    case.tokens = case.tokens.view(requests, 7)[:, [0, 1, 1, 1, 2, 2, 1]].flatten()
    case.parents = torch.tensor([-1, 0, 0, 0, 1, 1, 1], dtype=torch.int32).repeat(requests)
    assert_agrees(case, backend, backend.device)


@pytest.mark.parametrize("rule", TREE_RULES)
def test_large_trees(backend, rule):
    wide, deep = backend.scale((512, 300), (40, 20))
    case = random_case("verify_tree", rule, sizes=[wide, deep], vocab=601, filters=False)
    case.parents[wide:] = torch.arange(-1, deep - 1, dtype=torch.int32)  # one path
    assert_agrees(case, backend, backend.device, decided=0.5)


@pytest.mark.large("hundreds of requests, for a mean")
def test_traversal_accepts_at_least_as_many_as_recursive(backend):
    accepted = {}
    for rule in ("recursive", "traversal"):
        case = random_case("verify_tree", rule, sizes=[9] * 150, vocab=13, filters=False)
        accepted[rule] = case(backend, backend.device)["num_accepted"].sum()
    assert accepted["traversal"] > accepted["recursive"]


@pytest.mark.parametrize("rule", ["recursive", "traversal"])
def test_a_draft_that_is_almost_certain_of_one_token(backend, rule):
    """What is left of q without its favourite is small but still decides about the sibling."""
    vocab, trials = 5, backend.scale(400, 20)
    case = random_case("verify_tree", rule, sizes=[3] * trials, vocab=vocab, filters=False)
    case.parents = torch.tensor([-1, 0, 0], dtype=torch.int32).repeat(trials)
    case.target_logits = torch.tensor([-torch.inf, 2.0, 1.0, 0.0, -1.0]).repeat(3 * trials, 1)
    rest = torch.tensor([0.0, 1.0, 2.0, -1.0])
    case.options["draft_logits"] = torch.cat([torch.tensor([30.0]), rest - rest.logsumexp(0)]).repeat(3 * trials, 1)
    case.options["draft_temperature"] = torch.ones(trials)
    second = torch.multinomial(rest.softmax(0), trials, replacement=True) + 1
    case.tokens = torch.stack([torch.zeros(trials).long(), torch.zeros(trials).long(), second], 1).flatten()
    assert 0 < assert_agrees(case, backend, backend.device)["num_accepted"].sum() < trials
