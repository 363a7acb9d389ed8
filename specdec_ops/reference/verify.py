"""Verification: which drafts stay, and which token follows them.

A rule sees one request as a `Request` and returns `(path, weights)`: the root and the accepted nodes, and the
distribution (up to a factor) that the next token is drawn from with uniform 0.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from specdec_ops.ops.status import MALFORMED_TREE, TOKEN_OUT_OF_RANGE
from specdec_ops.reference.distribution import draw, filters_of, one_hot, processed, row_status

Verdict = tuple[list[int], Tensor]


class Request:
    """What a rule may ask. Nodes are numbered inside the request; node 0 is the root."""

    def __init__(
        self,
        tokens: list[int],
        children: list[list[int]],
        uniforms: list[float],
        target: Callable[[int], Tensor],
        draft: Callable[[int], Tensor | None],
        threshold: float = 0.09,
        alpha: float = 0.3,
    ) -> None:
        self.tokens = tokens
        self.children = children  # of each node, in order; dead nodes are not among them
        self.uniforms = uniforms
        self.target = target  # p: the processed distribution of the token after a node
        self.draft = draft  # q: the distribution a node's first child was drawn from; None: drafts are not random
        self.threshold, self.alpha = threshold, alpha

    def drafts(self, node: int) -> Iterator[tuple[int, int, Tensor]]:
        """Each child of the node, its token, and the q it was drawn from: drawing is without replacement."""
        q = self.draft(node) if self.children[node] else None
        for child in self.children[node]:
            x = self.tokens[child]
            if q is None:
                yield child, x, one_hot(x, self.target(node).numel())
            else:
                yield child, x, q
                q = q.clone()
                q[x] = 0
                q = q / q.sum() if q.sum() > 0 else q

    def typical(self, p: Tensor, x: int) -> bool:
        entropy = -torch.special.xlogy(p, p).sum().item()
        return p[x].item() > min(self.threshold, self.alpha * math.exp(-entropy))


def residual(p: Tensor, q: Tensor) -> Tensor:
    """What p still owes after a draft from q was rejected; p itself where rounding leaves no mass."""
    excess = (p - q).clamp(min=0)
    return excess / excess.sum() if excess.sum() > 0 else p


def ratio(p: Tensor, q: Tensor) -> float:
    if p == 0:
        return 0.0
    return (p / q).item() if q > 0 else math.inf


# Rules of a chain: every node has one child at most.


def rejection(r: Request) -> Verdict:
    """Leviathan et al., arXiv 2211.17192."""
    node, path = 0, [0]
    while True:
        p = r.target(node)
        if not r.children[node]:
            return path, p
        child, x, q = next(r.drafts(node))
        if not r.uniforms[child] * q[x] < p[x]:
            return path, residual(p, q)
        node = child
        path.append(node)


def block(r: Request) -> Verdict:
    """Sun et al., arXiv 2403.10444: the longest accepted prefix wins, even past a failure."""
    node, path, prefix = 0, [0], 1.0  # prefix: min(1, p / q) carried along the chain, P in the paper
    best: Verdict = ([], torch.empty(0))
    while prefix > 0:
        whole = node == 0 or r.uniforms[node] < prefix
        if not r.children[node] and not whole:
            return best  # the row of a rejected leaf is not read
        p = r.target(node)
        if not r.children[node]:
            return (path, p) if whole else best
        child, x, q = next(r.drafts(node))
        excess = (prefix * p - q).clamp(min=0).sum().item()
        accept = excess / (excess + (1 - prefix)) if excess > 0 else 0.0
        if node == 0 or r.uniforms[node] < accept:
            best = path.copy(), residual(prefix * p, q)
        prefix = min(1.0, prefix * ratio(p[x], q[x]))
        node = child
        path.append(node)
    return best


def strict(r: Request) -> Verdict:
    """Draw the target's own tokens and go on while they match the drafts."""
    node, path = 0, [0]
    while True:
        p = r.target(node)
        if not r.children[node]:
            return path, p
        (child,) = r.children[node]
        y = draw(p, r.uniforms[child])
        if y != r.tokens[child]:
            return path, one_hot(y, p.numel())
        node = child
        path.append(node)


# Rules of a tree, on a chain too.


def typical(r: Request) -> Verdict:
    """Cai et al., arXiv 2401.10774, not lossless: the deepest node on a path of likely enough tokens."""
    paths = {0: [0]}
    for node in range(len(r.tokens)):
        if node in paths and r.children[node]:
            p = r.target(node)
            for child in r.children[node]:
                if r.typical(p, r.tokens[child]):
                    paths[child] = [*paths[node], child]
    best = max(paths.values(), key=lambda path: (len(path), -path[-1]))
    return best, r.target(best[-1])


def greedy(r: Request) -> Verdict:
    """Temperature 0, where p is one-hot."""
    node, path = 0, [0]
    while True:
        p = r.target(node)
        matching = [child for child in r.children[node] if p[r.tokens[child]] > 0]
        if not matching:
            return path, p
        node = matching[0]
        path.append(node)


def target_only(r: Request) -> Verdict:
    """One draw from p a level, children first: lossless whatever drew the children, as long as siblings differ."""
    node, path = 0, [0]
    while True:
        p, reached, rest = r.target(node), 0.0, r.target(node).clone()
        for child in r.children[node]:
            x = r.tokens[child]
            reached += p[x].item()
            if r.uniforms[r.children[node][0]] < reached:
                break
            rest[x] = 0
        else:
            return path, rest if rest.sum() > 0 else p
        node = child
        path.append(node)


def recursive(r: Request) -> Verdict:
    """Miao et al., arXiv 2305.09781, with children drawn without replacement."""
    node, path = 0, [0]
    while True:
        p = r.target(node)
        for child, x, q in r.drafts(node):
            if r.uniforms[child] * q[x] < p[x]:
                break
            p = residual(p, q)
        else:
            return path, p
        node = child
        path.append(node)


def traversal(r: Request) -> Verdict:
    """Weng et al., arXiv 2505.12398: leaves first, so a path is judged as a whole and falls back node by node."""

    def visit(node: int, weight: float) -> Verdict | None:
        p = r.target(node) if r.children[node] else None
        for child, x, q in r.drafts(node):
            assert p is not None
            child_weight = min(1.0, weight * ratio(p[x], q[x]))
            accepted = visit(child, child_weight) if child_weight > 0 else None
            if accepted:
                return [node, *accepted[0]], accepted[1]
            # The child is gone, with all below it.
            excess = (weight * p - q).clamp(min=0).sum().item()
            p = residual(weight * p, q) if excess > 0 else p
            weight = excess / (excess + (1 - weight)) if excess > 0 else 0.0
        if node == 0 or r.uniforms[node] < weight:
            return [node], r.target(node) if p is None else p
        return None

    verdict = visit(0, 1.0)
    assert verdict is not None
    return verdict


Rules = dict[str, Callable[[Request], Verdict]]
CHAIN_RULES: Rules = {"rejection": rejection, "block": block, "strict": strict, "typical": typical}
TREE_RULES: Rules = {"target_only": target_only, "recursive": recursive, "traversal": traversal, "typical": typical}


def live_children(tokens: list[int], parents: list[int], vocab: int) -> tuple[list[list[int]], int]:
    """The children of each node and the status. A node is dead where its parent does not come before it, its parent is
    dead, or its token is no token; -1 says "no draft here" and is no fault."""
    children: list[list[int]] = [[] for _ in tokens]
    alive = [True] * len(tokens)
    status = 0 if parents[0] == -1 else MALFORMED_TREE
    for node in range(1, len(tokens)):
        if not 0 <= parents[node] < node:
            alive[node] = False
            status |= MALFORMED_TREE
        elif not alive[parents[node]]:
            alive[node] = False
        elif not 0 <= tokens[node] < vocab:
            alive[node] = False
            status |= TOKEN_OUT_OF_RANGE if tokens[node] != -1 else 0
        else:
            children[parents[node]].append(node)
    return children, status


class Rows:
    """One request's rows of logits as distributions, and the status bits of those that were asked for."""

    def __init__(
        self,
        target_logits: Tensor,
        draft_logits: Tensor | None,
        children: list[list[int]],
        options: dict[str, Any],
        draft_temperature: float,
    ) -> None:
        self.target_logits, self.draft_logits = target_logits, draft_logits
        self.children, self.options, self.draft_temperature = children, options, draft_temperature
        self.targets: dict[int, Tensor] = {}
        self.status = 0

    def target(self, node: int) -> Tensor:
        if node not in self.targets:
            row = self.target_logits[node].cpu()
            self.targets[node] = processed(row, **self.options)
            if row_status(row):
                self.status |= row_status(row)
                self.children[node].clear()  # nothing is built on a row like this
        return self.targets[node]

    def draft(self, node: int) -> Tensor | None:
        if self.draft_logits is None or not self.draft_temperature > 0:
            return None
        row = self.draft_logits[node].cpu()
        self.status |= row_status(row)
        return None if row_status(row) else processed(row, self.draft_temperature)


def _verify(
    rules: Rules,
    target_logits: Tensor,
    tokens: Tensor,
    parents: Tensor | None,
    cu_nodes: Tensor,
    uniforms: Tensor,
    draft_logits: Tensor | None,
    draft_temperature: Tensor | None,
    filters: tuple[Tensor | None, ...],
    rule: str,
    posterior_threshold: float,
    posterior_alpha: float,
    max_nodes: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    batch, (total, vocab), device = cu_nodes.numel() - 1, target_logits.shape, target_logits.device
    out_tokens = torch.full((batch, max_nodes), -1, dtype=torch.int64)
    num_accepted = torch.zeros(batch, dtype=torch.int32)
    paths = torch.full((batch, max_nodes), -1, dtype=torch.int32)
    logprobs = torch.zeros(batch, max_nodes)
    status = torch.zeros(batch, dtype=torch.int32)
    for b, (begin, end) in enumerate(zip(cu_nodes.tolist(), cu_nodes.tolist()[1:], strict=False)):
        if not 0 <= begin <= end <= total:
            status[b] = MALFORMED_TREE
            continue
        n = min(end - begin, max_nodes)
        if n == 0:
            continue
        ids = tokens[begin : begin + n].tolist()
        chain = list(range(-1, n - 1))
        children, flags = live_children(ids, chain if parents is None else parents[begin : begin + n].tolist(), vocab)
        options = filters_of(b, *filters)
        rows = Rows(
            target_logits[begin:end],
            None if draft_logits is None else draft_logits[begin:end],
            children,
            options,
            1.0 if draft_temperature is None else draft_temperature[b].item(),
        )
        request = Request(
            ids, children, uniforms[b].tolist(), rows.target, rows.draft, posterior_threshold, posterior_alpha
        )
        is_greedy = not options.get("temperature", 1.0) > 0
        path, weights = (greedy if is_greedy else rules[rule])(request)
        emitted = [ids[node] for node in path[1:]] + [draw(weights, request.uniforms[0])]
        out_tokens[b, : len(path)] = torch.tensor(emitted)
        num_accepted[b] = len(path) - 1
        paths[b, : len(path)] = torch.tensor(path)
        logprobs[b, : len(path)] = torch.stack(
            [rows.target(node)[x] for node, x in zip(path, emitted, strict=True)]
        ).log()
        status[b] = flags | rows.status
    return tuple(t.to(device) for t in (out_tokens, num_accepted, paths, logprobs, status))  # type: ignore[return-value]


def verify_chain(
    target_logits: Tensor,
    tokens: Tensor,
    cu_nodes: Tensor,
    uniforms: Tensor,
    *,
    draft_logits: Tensor | None = None,
    draft_temperature: Tensor | None = None,
    temperature: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    rule: str = "rejection",
    posterior_threshold: float = 0.09,
    posterior_alpha: float = 0.3,
    max_nodes: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    accepted_tokens, num_accepted, _, logprobs, status = _verify(
        CHAIN_RULES,
        target_logits,
        tokens,
        None,
        cu_nodes,
        uniforms,
        draft_logits,
        draft_temperature,
        (temperature, top_k, top_p, min_p),
        rule,
        posterior_threshold,
        posterior_alpha,
        max_nodes,
    )
    return accepted_tokens, num_accepted, logprobs, status


def verify_tree(
    target_logits: Tensor,
    tokens: Tensor,
    parents: Tensor,
    cu_nodes: Tensor,
    uniforms: Tensor,
    *,
    draft_logits: Tensor | None = None,
    draft_temperature: Tensor | None = None,
    temperature: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    rule: str = "target_only",
    posterior_threshold: float = 0.09,
    posterior_alpha: float = 0.3,
    max_nodes: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _verify(
        TREE_RULES,
        target_logits,
        tokens,
        parents,
        cu_nodes,
        uniforms,
        draft_logits,
        draft_temperature,
        (temperature, top_k, top_p, min_p),
        rule,
        posterior_threshold,
        posterior_alpha,
        max_nodes,
    )
