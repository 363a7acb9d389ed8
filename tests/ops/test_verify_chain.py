"""What is particular to chains; what chains and trees share is in test_verify.py."""

from dataclasses import replace

import pytest
import torch
from verification import conformance, random_case


def padded(rows: list[list[int]], width: int) -> list[list[int]]:
    return [row + [-1] * (width - len(row)) for row in rows]


@pytest.mark.parametrize("case", conformance("chain_greedy"))
@pytest.mark.parametrize("rule", ["rejection", "block", "strict", "typical"])
def test_published_greedy_chains(backend, case, rule):
    drafts = case["drafts"]
    sizes, vocab = [len(d) + 1 for d in drafts], 10
    best = [x for targets, bonus in zip(case["targets"], case["bonus"], strict=True) for x in [*targets, bonus]]
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(sum(sizes), vocab, generator=generator)
    logits[torch.arange(sum(sizes)), best] = 9
    tokens, num_accepted, logprobs, status = backend.verify_chain(
        logits.to(backend.device),
        torch.tensor([x for d in drafts for x in [0, *d]], device=backend.device),
        torch.tensor([0, *sizes], device=backend.device).cumsum(0).int(),
        torch.rand(len(drafts), max(sizes), generator=generator).to(backend.device),
        temperature=torch.zeros(len(drafts), device=backend.device),
        rule=rule,
        max_nodes=max(sizes),
    )
    assert tokens.tolist() == padded(case["output"], max(sizes))
    assert num_accepted.tolist() == [sum(x >= 0 for x in row) - 1 for row in case["output"]]
    assert not logprobs.any() and not status.any()


@pytest.mark.parametrize("case", conformance("chain_sampling"), ids=lambda case: case["name"])
def test_published_rejection_sampling(backend, case):
    sizes, vocab = [len(d) + 1 for d in case["drafts"]], case["vocab"]

    def logits(requests: list[list[dict[str, float]]]) -> torch.Tensor:
        p = torch.zeros(sum(sizes), vocab)
        for row, entries in zip(p, (row for rows in requests for row in rows), strict=True):
            for token, value in entries.items():
                row[int(token)] = value
        return p.log().to(backend.device)

    tokens, num_accepted, _, status = backend.verify_chain(
        logits(case["p"]),
        torch.tensor([x for d in case["drafts"] for x in [0, *d]], device=backend.device),
        torch.tensor([0, *sizes], device=backend.device).cumsum(0).int(),
        torch.tensor(
            [[last, *each] for last, each in zip(case["final_uniform"], case["uniforms"], strict=True)],
            device=backend.device,
        ),
        draft_logits=logits([[*rows, {"0": 1.0}] for rows in case["q"]]),
        max_nodes=max(sizes),
    )
    assert tokens.tolist() == case["output"]
    assert num_accepted.tolist() == case["num_accepted"]
    assert not status.any()


@pytest.mark.parametrize("rule", ["rejection", "block", "strict", "typical"])
def test_a_draft_that_is_absent_ends_the_chain(backend, rule):
    """-1 gives what the shorter chain gives, bit for bit."""
    requests = backend.scale(9, 4)
    case = random_case("verify_chain", rule, sizes=[6] * requests, vocab=23)
    case.tokens.view(requests, 6)[:, 3:] = -1
    rows = torch.arange(6 * requests).view(requests, 6)[:, :3].flatten()
    shorter = replace(
        case,
        target_logits=case.target_logits[rows],
        tokens=case.tokens[rows],
        cu_nodes=torch.arange(0, 3 * requests + 1, 3, dtype=torch.int32),
        options=case.options | {"draft_logits": case.options["draft_logits"][rows]},
    )
    one, other = case(backend, backend.device), shorter(backend, backend.device)
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_the_row_of_a_rejected_draft_is_not_used(backend, rule):
    p = torch.tensor([[0.9, 0.1], [torch.nan, torch.nan]]).log()
    tokens, num_accepted, _, status = backend.verify_chain(
        p.to(backend.device),
        torch.tensor([0, 1], device=backend.device),
        torch.tensor([0, 2], dtype=torch.int32, device=backend.device),
        torch.tensor([[0.5, 0.5]], device=backend.device),
        rule=rule,
        max_nodes=2,
    )
    assert (tokens.tolist(), num_accepted.tolist(), status.tolist()) == ([[0, -1]], [0], [0])


@pytest.mark.large("hundreds of requests, for a mean")
def test_block_accepts_at_least_as_many_as_rejection(backend):
    accepted = {}
    for rule in ("rejection", "block"):
        case = random_case("verify_chain", rule, sizes=[6] * 150, vocab=13, filters=False)
        accepted[rule] = case(backend, backend.device)["num_accepted"].sum()
    assert accepted["block"] > accepted["rejection"]
