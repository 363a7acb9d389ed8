"""Requests to verify, and what it means for a backend to agree with the reference about them."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import specdec_ops.reference

DATA = Path(__file__).parents[1] / "data"

CHAIN_RULES = ["rejection", "block", "strict", "typical"]
TREE_RULES = ["target_only", "recursive", "traversal", "typical"]
OPERATORS = [("verify_chain", rule) for rule in CHAIN_RULES] + [("verify_tree", rule) for rule in TREE_RULES]
OUTPUTS = {
    "verify_chain": ("tokens", "num_accepted", "logprobs", "status"),
    "verify_tree": ("tokens", "num_accepted", "path", "logprobs", "status"),
}


def conformance(name: str) -> list[dict]:
    """The published pairs of one file."""
    return json.loads((DATA / f"{name}.json").read_text())["cases"]


@dataclass
class Case:
    """One call. `parents` of a chain are kept as well, they are just not passed."""

    operator: str
    rule: str
    target_logits: Tensor
    tokens: Tensor
    parents: Tensor
    cu_nodes: Tensor
    uniforms: Tensor
    options: dict[str, Tensor]  # the optional arguments: per node (draft_logits) or per request
    max_nodes: int

    def __call__(self, operators: Any, device: torch.device | str = "cpu") -> dict[str, Tensor]:
        parents = [self.parents] if self.operator == "verify_tree" else []
        outputs = getattr(operators, self.operator)(
            *(x.to(device) for x in [self.target_logits, self.tokens, *parents, self.cu_nodes, self.uniforms]),
            **{name: x.to(device) for name, x in self.options.items()},
            rule=self.rule,
            max_nodes=self.max_nodes,
        )
        return {name: out.cpu() for name, out in zip(OUTPUTS[self.operator], outputs, strict=True)}

    def nodes(self, b: int) -> range:
        return range(int(self.cu_nodes[b]), int(self.cu_nodes[b + 1]))

    def select(self, requests: list[int]) -> "Case":
        """These requests in this order, as a call of their own."""
        rows = torch.tensor([row for b in requests for row in self.nodes(b)], dtype=torch.int64)
        sizes = torch.tensor([0] + [len(self.nodes(b)) for b in requests])
        return replace(
            self,
            target_logits=self.target_logits[rows],
            tokens=self.tokens[rows],
            parents=self.parents[rows],
            cu_nodes=sizes.cumsum(0).int(),
            uniforms=self.uniforms[requests],
            options={name: x[rows if name == "draft_logits" else requests] for name, x in self.options.items()},
        )


def random_case(
    operator: str,
    rule: str,
    *,
    sizes: list[int],
    vocab: int,
    dtype: torch.dtype = torch.float32,
    random_drafts: bool = True,
    filters: bool = True,
    seed: int = 0,
) -> Case:
    """A draft that is often right. With `filters` every third request is greedy and the others have all filters on."""
    rng = torch.Generator().manual_seed(seed)
    batch, total, max_nodes = len(sizes), sum(sizes), max([*sizes, 1])
    target = (3 * torch.randn(total, vocab, generator=rng)).to(dtype)
    draft = (target + 0.6 * torch.randn(total, vocab, generator=rng)).to(dtype)
    draft_temperature = 0.7 + torch.rand(batch, generator=rng)
    cu_nodes = torch.tensor([0, *sizes]).cumsum(0).int()
    tokens = torch.full((total,), vocab // 2)
    parents = torch.full((total,), -1, dtype=torch.int32)
    for b, size in enumerate(sizes):
        begin = int(cu_nodes[b])
        for node in range(1, size):
            # Parents are among the last few nodes: deep and wide parts both occur.
            low = max(0, node - 4)
            parent = int(torch.randint(low, node, (), generator=rng)) if operator == "verify_tree" else node - 1
            parents[begin + node] = parent
            scores = draft[begin + parent].float() / draft_temperature[b]
            noise = -torch.empty(vocab).exponential_(generator=rng).log()
            siblings = parents[begin : begin + node] == parent
            scores[tokens[begin : begin + node][siblings]] = -torch.inf
            tokens[begin + node] = (scores + noise).argmax()
    options = {"temperature": 0.6 + torch.rand(batch, generator=rng)}
    if random_drafts:
        options |= {"draft_logits": draft, "draft_temperature": draft_temperature}
    if filters:
        options["temperature"][::3] = 0
        options["top_k"] = torch.randint(-1, vocab + 2, (batch,), generator=rng, dtype=torch.int32)
        options["top_p"] = 0.5 + 0.6 * torch.rand(batch, generator=rng)
        options["min_p"] = 0.1 * torch.rand(batch, generator=rng) - 0.02
    uniforms = torch.rand(batch, max_nodes, generator=rng)
    return Case(operator, rule, target, tokens, parents, cu_nodes, uniforms, options, max_nodes)


def assert_agrees(case: Case, operators: Any, device: torch.device | str, *, decided: float = 0.9) -> dict[str, Tensor]:
    """Equal to the reference, but for requests too close to call: those whose verdict in float64 changes when all
    uniforms move by a hair. At least the share `decided` must not be of that kind."""
    actual = case(operators, device)
    if repr(operators) == "reference":
        return actual
    expected = case(specdec_ops.reference)
    hair = 1e-5
    up = replace(case, uniforms=(case.uniforms + hair).clamp(max=1 - 1e-7))(specdec_ops.reference)
    down = replace(case, uniforms=(case.uniforms - hair).clamp(min=0))(specdec_ops.reference)
    clear = (up["tokens"] == down["tokens"]).all(1) & (up["num_accepted"] == down["num_accepted"])
    assert clear.float().mean() >= decided
    for name, out in actual.items():
        assert out.dtype == expected[name].dtype and out.shape == expected[name].shape, name
        if name == "logprobs":
            torch.testing.assert_close(out[clear], expected[name][clear], atol=2e-4, rtol=1e-4)
        else:
            wrong = (out != expected[name]).flatten(1).any(1) if out.dim() > 1 else out != expected[name]
            assert not (wrong & clear).any(), (name, (wrong & clear).nonzero()[:, 0].tolist())
    return actual
