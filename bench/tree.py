"""verify_tree, each rule beside the floor of the rows it needs; no peer has such an operator on the CPU."""

from typing import Any

import torch
from torch import Tensor

from bench import inputs
from bench.timing import Case, num_sets, operator

AXES = {
    "dtype": ["float32", "bfloat16"],
    "rule": ["target_only", "recursive", "traversal", "typical"],
    "batch": [8],
    "nodes": [64],
    "vocab": [128256],
}
QUICK: dict[str, list[Any]] = {}

TEMPERATURE = 0.9


class Inputs:
    """A tree a request; the children of a node drawn from its draft row without replacement, in draw order."""

    def __init__(self, dtype: torch.dtype, batch: int, nodes: int, vocab: int) -> None:
        target = inputs.target_logits(batch * nodes, vocab)
        self.draft = inputs.draft_logits(target).to(dtype)
        self.target = target.to(dtype)
        self.parents = torch.tensor([inputs.random_tree(nodes) for _ in range(batch)], dtype=torch.int32)
        self.tokens = torch.zeros(batch, nodes, dtype=torch.int64)
        draft = self.draft.view(batch, nodes, vocab)
        for request, parents in enumerate(self.parents):
            for node in parents[1:].unique().tolist():
                children = (parents == node).nonzero().view(-1)
                probs = (draft[request, node].float() / TEMPERATURE).softmax(-1)
                self.tokens[request, children] = torch.multinomial(probs, len(children))
        self.cu_nodes = torch.arange(batch + 1, dtype=torch.int32) * nodes
        self.uniforms = torch.rand(batch, nodes)
        self.temperature = torch.full((batch,), TEMPERATURE)

    def verify(self, operator: Any, rule: str) -> tuple[Tensor, Tensor]:
        """Runs the operator; returns num_accepted and path."""
        _, num_accepted, path, _, _ = operator(
            self.target,
            self.tokens.view(-1),
            self.parents.view(-1),
            self.cu_nodes,
            self.uniforms,
            draft_logits=self.draft if rule in ("recursive", "traversal") else None,
            draft_temperature=self.temperature,
            temperature=self.temperature,
            rule=rule,
            max_nodes=self.parents.shape[1],
        )
        return num_accepted, path


def rows_needed(parents: list[int], path: list[int], rule: str) -> tuple[int, int]:
    """Target and draft rows that a request's verdict depends on; `path` is the root and the accepted nodes."""
    internal, end = set(parents), path[-1]
    if rule == "traversal":
        # It goes from leaf to leaf in depth-first order and ends at the accepted node, having deleted all below it and
        # all leaves before it: the internal nodes it saw come before the end of that node's subtree.
        children: dict[int, list[int]] = {}
        for node, parent in enumerate(parents):
            children.setdefault(parent, []).append(node)
        seen: list[int] = []

        def descend(node: int) -> bool:
            """Visits the subtree; true once the accepted node's subtree is complete."""
            seen.append(node)
            return any(descend(child) for child in children.get(node, [])) or node == end

        descend(0)
        drafts = sum(node in internal for node in seen)
        return drafts + (end not in internal), drafts
    # The others walk down the path: the row of each node on it; and where they need q, the draft row of each parent.
    drafts = sum(node in internal for node in path) if rule == "recursive" else 0
    return len(path), drafts


def case(dtype: str, rule: str, batch: int, nodes: int, vocab: int) -> Case:
    ours = operator("verify_tree")
    if isinstance(ours, str):
        return Case({}, 1, lambda i: [], skipped={"ours": ours})
    scalar = getattr(torch, dtype)
    sets = num_sets(2 * batch * nodes * vocab * scalar.itemsize)
    steps = [Inputs(scalar, batch, nodes, vocab) for _ in range(sets)]

    needed, accepted = [], []
    for step in steps:
        num_accepted, path = step.verify(ours, rule)
        accepted.append(num_accepted.float())
        needed.append([0, 0])
        for parents, row, count in zip(step.parents.tolist(), path.tolist(), num_accepted.tolist(), strict=True):
            target_rows, draft_rows = rows_needed(parents, row[: count + 1], rule)
            needed[-1][0] += target_rows
            needed[-1][1] += draft_rows

    def floor_reads(i: int) -> list[Tensor]:
        return [steps[i].target[: needed[i][0]], steps[i].draft[: needed[i][1]]]

    facts = {"accepted": torch.cat(accepted).mean().item(), "rows": float(sum(needed[0]))}
    return Case({"ours": lambda i: steps[i].verify(ours, rule)}, sets, floor_reads, facts=facts)
