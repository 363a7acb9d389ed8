"""The lossless rules leave the target's distribution as it is.

The reference is integrated exactly, over its uniforms and over the drafts. Backends are run on many requests at once
and compared by chi-square with the exact joint distribution of several tokens: logits depend on the tokens before them,
and what a step emits is completed to a fixed length by sampling from the target, so that the joint distribution must be
the target's own. The same comparison must reject faults that are planted here.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
import torch
from backends import without_reference
from scipy.stats import chi2
from torch import Tensor

from specdec_ops.reference.distribution import processed
from specdec_ops.reference.verify import CHAIN_RULES, TREE_RULES, Request

pytestmark = pytest.mark.large("200k trials a test; equal results for equal uniforms stand for them")
CHAIN_LOSSLESS = ["rejection", "block", "strict"]
TREE_LOSSLESS = ["target_only", "recursive", "traversal"]
CHAIN = [-1, 0, 1, 2]
TREE = [-1, 0, 0, 1, 1, 0, 2]  # three children, two of which go on

# ---- The reference, exactly


class Tape:
    """Answers to the comparisons of uniforms in one run, and the probability of getting them."""

    def __init__(self, answers: list[bool]) -> None:
        self.given, self.answers, self.probability = answers, [], 1.0

    def answer(self, probability: float) -> bool:
        i = len(self.answers)
        yes = self.given[i] if i < len(self.given) else True
        self.answers.append(yes)
        self.probability *= probability if yes else 1 - probability
        return yes


class SymbolicUniform:
    """Stands for all of [0, 1); a comparison that cuts what is left of the interval is answered by the tape."""

    def __init__(self, tape: Tape, factor: float = 1.0) -> None:
        self.tape, self.factor, self.low, self.high = tape, factor, 0.0, 1.0

    def __mul__(self, factor: Tensor) -> "SymbolicUniform":
        assert (self.low, self.high) == (0, 1)
        return SymbolicUniform(self.tape, float(factor))

    def __lt__(self, bound: float) -> bool:
        bound = float(bound) / self.factor
        if self.low < bound < self.high:
            if self.tape.answer((bound - self.low) / (self.high - self.low)):
                self.high = bound
            else:
                self.low = bound
        return self.high <= bound


def all_runs(program: Callable[[Tape], object]) -> Iterator[tuple[float, object]]:
    pending: list[list[bool]] = [[]]
    while pending:
        given = pending.pop()
        tape = Tape(given)
        yield tape.probability, program(tape)
        pending += [[*tape.answers[:i], False] for i in range(len(given), len(tape.answers))]


def children_of(parents: list[int]) -> list[list[int]]:
    return [[j for j, parent in enumerate(parents) if parent == i] for i in range(len(parents))]


@pytest.mark.parametrize("random_drafts", [True, False])
@pytest.mark.parametrize(
    ("rule", "parents"),
    [(CHAIN_RULES[name], CHAIN) for name in ("rejection", "block")]
    + [(TREE_RULES[name], shape) for name in TREE_LOSSLESS for shape in (CHAIN, TREE, [-1, 0, 1, 1, 0, 2])],
)
def test_the_reference_exactly(rule, parents, random_drafts):
    vocab, children = 3, children_of(parents)
    model = Model(vocab, length=4, seed=0)
    p = model.target.double().softmax(-1)
    q = model.draft.double().softmax(-1)

    def trees(node: int, tokens: list[int], contexts: list[int]) -> Iterator[tuple[float, list[int], list[int]]]:
        """Tokens of the children of `node` and later nodes, with the probability of drawing them in this order."""
        if node == len(parents):
            yield 1.0, tokens, contexts
            return
        row, count = q[contexts[node]], len(children[node])
        best = tuple(row.argsort(descending=True)[:count].tolist())
        for choice in itertools.permutations(range(vocab), count) if random_drafts else [best]:
            left, probability = row.clone(), 1.0
            for x in choice:
                probability *= (left[x] / left.sum()).item() if random_drafts else 1.0
                left[x] = 0
            new_tokens, new_contexts = tokens.copy(), contexts.copy()
            for child, x in zip(children[node], choice, strict=True):
                new_tokens[child], new_contexts[child] = x, model.next(contexts[node], x)
            for rest, *tree in trees(node + 1, new_tokens, new_contexts):
                yield probability * rest, *tree

    length = 4
    joint = torch.zeros((vocab,) * length, dtype=torch.float64)
    for drawn, tokens, contexts in trees(0, [0] * len(parents), [0] * len(parents)):

        def verdict(tape, tokens=tokens, contexts=contexts):
            uniforms = [SymbolicUniform(tape) for _ in parents]
            target, draft = lambda i: p[contexts[i]], lambda i: q[contexts[i]] if random_drafts else None
            tape.verdict = rule(Request(tokens, children, uniforms, target, draft))
            return tape

        for _, tape in all_runs(verdict):
            path, weights = tape.verdict
            accepted = tuple(tokens[node] for node in path[1:])
            for x, mass in enumerate((weights / weights.sum()).tolist()):
                start = (*accepted, x)
                joint[start] += drawn * tape.probability * mass * model.continuation(p, start, length)
    assert (joint - model.continuation(p, (), length)).abs().max() < 1e-14


# ---- The backends, by chi-square; the reference, a millisecond a request, is integrated exactly above


@dataclass
class Setting:
    """One kind of request in a batch."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    draft_temperature: float = 1.1


class Model:
    """Random logits for every sequence of fewer than `length` tokens.

    By default the draft dislikes what the target likes. A sequence is a number, its context: 0 is empty, `next` appends
    a token.
    """

    def __init__(self, vocab: int, length: int, seed: int, likeness: float = -1.0) -> None:
        self.vocab, self.generator = vocab, torch.Generator().manual_seed(seed)
        contexts = sum(vocab**n for n in range(length))
        self.target = 1.3 * torch.randn(contexts, vocab, generator=self.generator)
        self.draft = 0.5 * torch.randn(contexts, vocab, generator=self.generator) + likeness * self.target

    def next(self, context, token):
        return context * self.vocab + 1 + token

    def continuation(self, p: Tensor, start: tuple[int, ...], length: int) -> Tensor:
        """Joint distribution under `p` of the tokens that follow `start`, up to `length` in all."""
        contexts = torch.zeros((), dtype=torch.int64)
        for token in start:
            contexts = self.next(contexts, token)
        joint = torch.ones((), dtype=torch.float64)
        for _ in range(length - len(start)):
            joint = joint[..., None] * p[contexts]
            contexts = self.next(contexts[..., None], torch.arange(self.vocab))
        return joint


@dataclass
class Experiment:
    parents: list[int]
    rule: str
    settings: list[Setting] = field(default_factory=lambda: [Setting()])
    vocab: int = 5
    random_drafts: bool = True  # False: the draft's best tokens, and no draft_logits
    replacement: bool = False  # siblings drawn independently of each other
    likeness: float = -1.0  # of the draft to the target
    trials: int = 200_000  # of each setting
    seed: int = 1

    def p_values(self, verify: Callable[..., tuple[Tensor, ...]], device: str | torch.device = "cpu") -> list[float]:
        children = children_of(self.parents)
        nodes, batch = len(self.parents), self.trials * len(self.settings)
        depth = [0] * nodes
        for node in range(1, nodes):
            depth[node] = depth[self.parents[node]] + 1
        length = max(depth) + 1
        model = Model(self.vocab, length, self.seed, self.likeness)
        rng = model.generator
        kind = torch.randperm(batch, generator=rng) % len(self.settings)  # the settings share one batch

        def per_request(name: str) -> Tensor:
            values = torch.tensor([getattr(setting, name) for setting in self.settings])
            return (values.int() if name == "top_k" else values.float())[kind]

        tokens = torch.zeros(batch, nodes, dtype=torch.int64)
        contexts = torch.zeros(batch, nodes, dtype=torch.int64)
        for node in range(nodes):
            count = len(children[node])
            if not count:
                continue
            scores = model.draft[contexts[:, node]] / per_request("draft_temperature")[:, None]
            if self.replacement:
                chosen = scores.softmax(-1).multinomial(count, replacement=True, generator=rng)
            else:
                gumbel = -torch.empty_like(scores).exponential_(generator=rng).log()
                chosen = (scores + gumbel if self.random_drafts else scores).topk(count).indices
            tokens[:, children[node]] = chosen
            contexts[:, children[node]] = model.next(contexts[:, node, None], chosen)
        options = {name: per_request(name) for name in ("temperature", "top_k", "top_p", "min_p")}
        if self.random_drafts:
            options["draft_logits"] = model.draft[contexts].flatten(0, 1)
            options["draft_temperature"] = per_request("draft_temperature")
        inputs = [model.target[contexts].flatten(0, 1), tokens.flatten()]
        if self.rule in TREE_LOSSLESS:
            inputs.append(torch.tensor(self.parents, dtype=torch.int32).repeat(batch))
        inputs += [
            torch.arange(0, batch * nodes + 1, nodes, dtype=torch.int32),
            torch.rand(batch, nodes, generator=rng),
        ]
        emitted, num_accepted, *_, status = verify(
            *(x.to(device) for x in inputs),
            **{name: x.to(device) for name, x in options.items()},
            rule=self.rule,
            max_nodes=nodes,
        )
        assert not status.any()
        emitted, num_accepted = emitted.cpu(), num_accepted.cpu()
        p = torch.stack(
            [
                torch.stack([processed(row, s.temperature, s.top_k, s.top_p, s.min_p) for row in model.target])
                for s in self.settings
            ]
        )
        sequence = torch.zeros(batch, dtype=torch.int64)
        context = torch.zeros(batch, dtype=torch.int64)
        for i in range(length):
            sampled = p[kind, context].multinomial(1, generator=rng)[:, 0]
            token = torch.where(i <= num_accepted, emitted[:, i], sampled)
            assert ((token >= 0) & (token < self.vocab)).all()
            sequence, context = sequence * self.vocab + token, model.next(context, token)
        results = []
        for k in range(len(self.settings)):
            observed = sequence[kind == k].bincount(minlength=self.vocab**length)
            expected = model.continuation(p[k], (), length).flatten() * self.trials
            results.append(chi_square(observed.double(), expected))
        return results


def chi_square(observed: Tensor, expected: Tensor) -> float:
    """p-value; rare cells are counted as one, and a cell that cannot occur must not."""
    if observed[expected == 0].any():
        return 0.0
    rare = expected < 10
    cells = [(observed[~rare], expected[~rare]), (observed[rare].sum()[None], expected[rare].sum()[None])]
    observed, expected = (torch.cat(parts) for parts in zip(*cells, strict=True))
    observed, expected = observed[expected > 0], expected[expected > 0]
    return chi2.sf(((observed - expected) ** 2 / expected).sum().item(), max(len(expected) - 1, 1)).item()


def operator(backend, rule: str) -> Callable[..., tuple[Tensor, ...]]:
    return backend.verify_tree if rule in TREE_LOSSLESS else backend.verify_chain


each_rule = pytest.mark.parametrize("rule", CHAIN_LOSSLESS + TREE_LOSSLESS)
MIXED = [Setting(), Setting(0.7, top_k=4, top_p=0.9, min_p=0.02, draft_temperature=0.6), Setting(temperature=0)]


def shape_for(rule: str) -> list[int]:
    return TREE if rule in TREE_LOSSLESS else CHAIN


@without_reference
@each_rule
@pytest.mark.parametrize(
    ("settings", "vocab", "random_drafts"), [(MIXED, 5, True), (MIXED[:1], 5, False), (MIXED[:1], 16, True)]
)
def test_lossless(backend, rule, settings, vocab, random_drafts):
    parents = shape_for(rule)[: 7 if vocab == 5 else 3]
    experiment = Experiment(parents, rule, settings, vocab, random_drafts)
    assert min(experiment.p_values(operator(backend, rule), backend.device)) > 1e-4


@without_reference
@each_rule
def test_lossless_with_cold_drafts(backend, rule):
    """What is left of q after its best token is less than float32 holds next to it."""
    settings = [Setting(draft_temperature=temperature) for temperature in (0.03, 0.01, 1e-3)]
    experiment = Experiment(shape_for(rule), rule, settings, trials=100_000)
    assert min(experiment.p_values(operator(backend, rule), backend.device)) > 1e-4


@without_reference
@pytest.mark.parametrize("rule", TREE_LOSSLESS)
def test_lossless_on_a_chain(backend, rule):
    assert min(Experiment(CHAIN, rule).p_values(backend.verify_tree, backend.device)) > 1e-4


# ---- Planted faults

FAULT = 1e-12


@without_reference
@each_rule
def test_a_uniform_used_twice_is_rejected(backend, rule):
    def verify(*inputs, **options):
        *first, uniforms = inputs
        uniforms[:, 0] = uniforms[:, 1]
        return operator(backend, rule)(*first, uniforms, **options)

    assert Experiment(CHAIN[:2], rule).p_values(verify, backend.device)[0] < FAULT


@without_reference
@pytest.mark.parametrize("rule", ["rejection", "block", "recursive", "traversal"])
def test_q_without_the_draft_temperature_is_rejected(backend, rule):
    def verify(*inputs, draft_temperature, **options):
        return operator(backend, rule)(*inputs, **options)

    assert Experiment(shape_for(rule), rule, likeness=1).p_values(verify, backend.device)[0] < FAULT


@without_reference
def test_duplicate_siblings_are_rejected(backend):
    experiment = Experiment(TREE, "target_only", replacement=True)
    assert experiment.p_values(backend.verify_tree, backend.device)[0] < FAULT


def softmax(logits: Tensor, temperature: Tensor, nodes: int) -> Tensor:
    """float64 `[B, nodes, V]`"""
    return (logits.view(-1, nodes, logits.shape[-1]).double() / temperature[:, None, None]).softmax(-1)


def positive_part(x: Tensor) -> Tensor:
    return x.clamp(min=0)


def draw(weights: Tensor, uniforms: Tensor, *, normalise: bool = True) -> Tensor:
    cumulative = weights.cumsum(-1)
    total = cumulative[:, -1:] if normalise else 1.0
    last = weights.shape[-1] - 1 - (weights.flip(-1) > 0).int().argmax(-1)
    return torch.minimum((cumulative <= uniforms[:, None] * total).sum(-1), last)


def emit(drafts: Tensor, num_accepted: Tensor, last: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`drafts [B, K]` are those of the accepted path."""
    columns = torch.arange(drafts.shape[1] + 1)
    padded = torch.cat([drafts, last[:, None]], -1)
    tokens = torch.where(columns < num_accepted[:, None], padded, last[:, None])
    return torch.where(columns <= num_accepted[:, None], tokens, -1), num_accepted, torch.zeros_like(num_accepted)


def chain_rejection(*, normalise: bool = True):
    def verify(target_logits, tokens, cu_nodes, uniforms, *, draft_logits, draft_temperature, temperature, **_):
        nodes, each = uniforms.shape[1], torch.arange(len(uniforms))
        p, q = softmax(target_logits, temperature, nodes), softmax(draft_logits, draft_temperature, nodes)
        drafts = tokens.view(-1, nodes)[:, 1:]
        p_x, q_x = (rows[:, :-1].gather(-1, drafts[..., None])[..., 0] for rows in (p, q))
        num_accepted = (uniforms[:, 1:] * q_x < p_x).int().cumprod(-1).sum(-1)
        q[:, -1] = 0
        weights = positive_part(p - q)[each, num_accepted]
        return emit(drafts, num_accepted, draw(weights, uniforms[:, 0], normalise=normalise))

    return verify


def chain_block(*, stop_at_first_failure: bool = False):
    def verify(target_logits, tokens, cu_nodes, uniforms, *, draft_logits, draft_temperature, temperature, **_):
        nodes, each = uniforms.shape[1], torch.arange(len(uniforms))
        p, q = softmax(target_logits, temperature, nodes), softmax(draft_logits, draft_temperature, nodes)
        drafts = tokens.view(-1, nodes)[:, 1:]
        prefix = [torch.ones(len(uniforms), dtype=torch.float64)]
        for i, x in enumerate(drafts.T):
            prefix.append((prefix[-1] * p[each, i, x] / q[each, i, x]).clamp(max=1))
        prefix = torch.stack(prefix, -1)
        q[:, -1] = 0
        excess = positive_part(prefix[..., None] * p - q)
        accept = excess.sum(-1) / (excess.sum(-1) + 1 - prefix)
        accept[:, -1] = prefix[:, -1]
        wins = uniforms < accept
        wins[:, 0] = True
        if stop_at_first_failure:
            num_accepted = wins[:, 1:].int().cumprod(-1).sum(-1)
        else:
            num_accepted = (wins * torch.arange(nodes)).amax(-1)
        return emit(drafts, num_accepted, draw(excess[each, num_accepted], uniforms[:, 0]))

    return verify


def tree_traversal(*, bonus_from_the_original_p: bool = False):
    def verify(
        target_logits, tokens, parents, cu_nodes, uniforms, *, draft_logits, draft_temperature, temperature, **_
    ):
        nodes, each = uniforms.shape[1], torch.arange(len(uniforms))
        children, ids = children_of(parents[:nodes].tolist()), tokens.view(-1, nodes)
        p, q = softmax(target_logits, temperature, nodes), softmax(draft_logits, draft_temperature, nodes)
        original = p.clone()
        open_requests = torch.ones(len(uniforms), dtype=torch.bool)
        winner = torch.zeros(len(uniforms), dtype=torch.int64)

        def visit(node: int, weight: Tensor) -> None:
            for child in children[node]:
                x = ids[:, child]
                visit(child, (weight * p[each, node, x] / q[each, node, x]).nan_to_num(0).clamp(max=1))
                rest = positive_part(weight[:, None] * p[:, node] - q[:, node])
                total = rest.sum(-1)
                p[:, node] = torch.where(open_requests[:, None], (rest / total[:, None]).nan_to_num(0), p[:, node])
                weight = (total / (total + 1 - weight)).nan_to_num(0)
                q[each, node, x] = 0
                q[:, node] = (q[:, node] / q[:, node].sum(-1, keepdim=True)).nan_to_num(0)
            accepted = open_requests & ((uniforms[:, node] < weight) | (node == 0))
            winner[accepted] = node
            open_requests[accepted] = False

        visit(0, torch.ones(len(uniforms), dtype=torch.float64))
        weights = (original if bonus_from_the_original_p else p)[each, winner]
        paths = []
        for node in range(nodes):
            path = []
            while node > 0:
                path.insert(0, node)
                node = int(parents[node])
            paths.append(path + [0] * (nodes - 1 - len(path)))
        paths = torch.tensor(paths)[winner]
        return emit(ids.gather(1, paths), (paths > 0).sum(-1), draw(weights, uniforms[:, 0]))

    return verify


@pytest.mark.parametrize(
    ("rule", "parents", "right", "wrong"),
    [
        ("rejection", CHAIN, chain_rejection(), chain_rejection(normalise=False)),
        ("block", CHAIN, chain_block(), chain_block(stop_at_first_failure=True)),
        ("traversal", TREE, tree_traversal(), tree_traversal(bonus_from_the_original_p=True)),
    ],
)
def test_a_wrong_rule_is_rejected(rule, parents, right, wrong):
    experiment = Experiment(parents, rule)
    assert experiment.p_values(right)[0] > 1e-4
    assert experiment.p_values(wrong)[0] < FAULT
