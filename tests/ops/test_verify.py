"""What both verification operators do with every rule."""

from dataclasses import replace

import pytest
import torch
from backends import without_reference
from hypothesis import given, settings
from hypothesis import strategies as st
from verification import OPERATORS, OUTPUTS, assert_agrees, random_case

import specdec_ops

each_rule = pytest.mark.parametrize(("operator", "rule"), OPERATORS)


def ragged(backend):
    return backend.scale([5, 1, 0, 9, 2, 0, 7, 12, 1, 3, 6, 4], [2, 5, 0, 3, 4, 1])


@each_rule
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("random_drafts", [True, False])
def test_agrees_with_the_reference(backend, operator, rule, dtype, random_drafts):
    accepted = 0
    for seed, vocab in enumerate(backend.scale([7, 67, 1003], [131])):
        case = random_case(
            operator, rule, sizes=ragged(backend), vocab=vocab, dtype=dtype, random_drafts=random_drafts, seed=seed
        )
        accepted += int(assert_agrees(case, backend, backend.device)["num_accepted"].sum())
    assert accepted > backend.scale(8, 0)  # the cases do exercise acceptance


@each_rule
def test_without_filters(backend, operator, rule):
    case = random_case(operator, rule, sizes=ragged(backend), vocab=131, filters=False)
    assert_agrees(case, backend, backend.device)
    assert_agrees(replace(case, options={}), backend, backend.device)  # all optional arguments absent


@each_rule
def test_draft_temperature_zero_means_drafts_that_are_not_random(backend, operator, rule):
    case = random_case(operator, rule, sizes=ragged(backend), vocab=67)
    zero = replace(case, options=case.options | {"draft_temperature": torch.zeros(len(case.uniforms))})
    absent = replace(case, options={k: v for k, v in case.options.items() if not k.startswith("draft")})
    one, other = zero(backend, backend.device), absent(backend, backend.device)
    assert all(torch.equal(one[name], other[name]) for name in one)


@each_rule
def test_vocabulary_of_one(backend, operator, rule):
    case = random_case(operator, rule, sizes=[4, 1], vocab=1)
    tree = torch.tensor([-1, 0, 0, 1, -1], dtype=torch.int32)
    tokens = torch.zeros(5, dtype=torch.int64)
    out = assert_agrees(replace(case, tokens=tokens, parents=tree), backend, backend.device)
    assert out["num_accepted"].tolist() == [3 if operator == "verify_chain" else 2, 0]


@each_rule
def test_drafts_that_are_no_tokens(backend, operator, rule):
    case = random_case(operator, rule, sizes=[6] * 8, vocab=31, filters=backend.scale(True, False))
    case.tokens.view(8, 6)[:4, [2, 4]] = -1
    case.tokens.view(8, 6)[4, 3] = 31
    case.tokens.view(8, 6)[5, 1] = -7
    case.tokens.view(8, 6)[6, 2] = 1 << 40
    case.tokens.view(8, 6)[7, 0] = -9  # a root's own id is not looked at
    out = assert_agrees(case, backend, backend.device)
    assert out["status"].tolist() == [0, 0, 0, 0, 4, 4, 4, 0]


@each_rule
def test_bad_rows(backend, operator, rule):
    case = random_case(operator, rule, sizes=[4] * 12, vocab=37, filters=backend.scale(True, False))
    rows = case.target_logits.view(12, 4, 37)
    rows[0, 0, 5] = torch.nan
    rows[1, 0] = torch.nan
    rows[2, 0, 36] = torch.inf
    rows[3, 0] = -torch.inf
    rows[4, 0, ::2] = torch.inf
    rows[5, :, 1::2] = -torch.inf  # a mask is not a fault
    rows[6, 1:] = torch.nan
    rows[7, 0] = -torch.inf
    rows[7, 0, 11] = torch.nan
    case.options["draft_logits"].view(12, 4, 37)[8:10] = torch.nan
    case.options["draft_logits"].view(12, 4, 37)[10, 0] = -torch.inf
    case.options["draft_logits"].view(12, 4, 37)[11, 0, 3] = torch.inf
    for temperature in (1.0, 0.0):
        case.options["temperature"] = torch.full((12,), temperature)
        out = assert_agrees(case, backend, backend.device)
        assert out["status"][:6].tolist() == [1, 1, 1, 2, 1, 0] and out["status"][7] == 1
        # Draft rows are flagged where they are read: by the rules that have a q.
        has_q = temperature > 0 and rule in ("rejection", "block", "recursive", "traversal")
        assert out["status"][8:].tolist() == ([1, 1, 2, 1] if has_q else [0, 0, 0, 0])
        assert not out["logprobs"].isnan().any()


@each_rule
@pytest.mark.parametrize("which", ["target", "draft"])
def test_a_bad_row_is_told_only_where_it_is_read(backend, operator, rule, which):
    """Not below a rejected node, and a draft row not where nothing was drafted from it."""
    batch, nodes = backend.scale(60, 12), 6
    told = 0
    for unlikely in (False, True):
        case = random_case(operator, rule, sizes=[nodes] * batch, vocab=19, filters=False)
        logits = case.target_logits if which == "target" else case.options["draft_logits"]
        spoilt = torch.arange(batch) % nodes
        logits.view(batch, nodes, 19)[torch.arange(batch), spoilt, 3] = torch.nan
        if unlikely:  # the first draft of the root has no probability
            case.target_logits.view(batch, nodes, 19)[
                torch.arange(batch), 0, case.tokens.view(batch, nodes)[:, 1]
            ] = -torch.inf
        status = assert_agrees(case, backend, backend.device)["status"]
        told += int((status > 0).sum())
    has_q = rule in ("rejection", "block", "recursive", "traversal")
    assert 0 < told < 2 * batch if which == "target" or has_q else told == 0


@each_rule
def test_bad_uniforms_and_parameters(backend, operator, rule):
    """Whatever they are, what comes out is in range."""
    case = random_case(operator, rule, sizes=[5] * 10, vocab=19, filters=backend.scale(True, False))
    bad = torch.tensor([torch.nan, torch.inf, -torch.inf, 2.0, -1.0, 1.0, 1e30, -1e-30, 1e-45, 0.0])
    cases = [replace(case, uniforms=bad[:, None].expand(10, 5).contiguous())]
    for name in ("temperature", "top_p", "min_p", "draft_temperature"):
        cases.append(replace(case, options=case.options | {name: bad}))
    top_k = torch.tensor([-(1 << 31), -1, 0, 1, 18, 19, 20, (1 << 31) - 1, 2, 3], dtype=torch.int32)
    cases.append(replace(case, options=case.options | {"top_k": top_k}))
    for case in cases:
        out = case(backend, backend.device)
        emitted = torch.arange(5) <= out["num_accepted"][:, None]
        assert ((out["tokens"] >= 0) == emitted).all() and (out["tokens"] < 19).all()
        assert not out["status"].any()


@each_rule
def test_infinite_temperature(backend, operator, rule):
    """Uniform over what is kept, also of a draft."""
    case = random_case(operator, rule, sizes=[5] * 6, vocab=19, filters=False)
    case.target_logits[:, ::4] = case.options["draft_logits"][:, 1::4] = -torch.inf
    case.options["temperature"][:] = torch.inf
    case.options["draft_temperature"][3:] = torch.inf
    filters = {"top_k": torch.tensor([0, 3, 0, 0, 7, 0]).int(), "min_p": torch.tensor([0.0, 0, 0, 0.5, 1.0, 0])}
    for options in (case.options, case.options | filters | {"top_p": torch.tensor([1, 1, 0.55, 1, 1, 0.0])}):
        assert_agrees(replace(case, options=options), backend, backend.device, decided=0.6)


@each_rule
def test_cold_drafts(backend, operator, rule):
    """What is left of q after its best token is less than float32 holds next to it."""
    case = random_case(operator, rule, sizes=[6] * 16, vocab=13, filters=False)
    case.options["draft_temperature"] = torch.tensor([0.1, 0.05, 0.03, 0.02]).repeat(4)
    case.options["temperature"][:] = 5.0  # many drafts are rejected
    best = case.options["draft_logits"].view(16, 6, 13)[:, 0].argsort(1, descending=True)
    case.tokens.view(16, 6)[:, 1:] = best[:, :5]  # as they would be drawn
    if operator == "verify_tree":
        case.parents.view(16, 6)[:, 1:] = 0
    assert_agrees(case, backend, backend.device)


@each_rule
def test_a_token_without_probability_is_never_accepted_nor_drawn(backend, operator, rule):
    case = random_case(operator, rule, sizes=[4] * 6, vocab=9, filters=False)
    case = replace(case, uniforms=torch.zeros_like(case.uniforms))
    case.target_logits[:, 0] = -torch.inf
    case.tokens[:] = 0
    out = assert_agrees(case, backend, backend.device)
    assert not out["num_accepted"].any() and (out["tokens"][:, 0] > 0).all()


@pytest.mark.parametrize(("operator", "rule"), [("verify_chain", "block"), ("verify_tree", "traversal")])
@pytest.mark.parametrize("mass", [8e-8, 1e-20])
def test_a_residual_with_little_mass_counts_whole_where_nothing_was_lost_before(backend, operator, rule, mass):
    """S / (S + 1 - W) is 1 for W = 1, however small S is: 1 must not swallow it."""
    case = random_case(operator, rule, sizes=[3], vocab=3, filters=False)
    case.tokens[:] = torch.tensor([0, 0, 2])
    case.parents[:] = torch.tensor([-1, 0, 1])
    little, none = torch.tensor(mass).log().item(), -torch.inf
    case.target_logits[:] = torch.tensor([[0, none, none], [0, little, none], [0, 0, 0]])
    case.options = {"draft_logits": torch.tensor([[0, none, none], [0, none, little], [0, 0, 0]])}
    case.uniforms[:] = 0.9
    out = case(backend, backend.device)
    assert out["tokens"].tolist() == [[0, 1, -1]] and out["num_accepted"].tolist() == [1]


@each_rule
def test_rows_need_not_be_dense(backend, operator, rule):
    case = random_case(operator, rule, sizes=ragged(backend), vocab=61)
    total = len(case.tokens)
    spread = torch.full((2, total, 3, 70), torch.nan)
    spread[0, :, 1, 4:65], spread[1, :, 1, 4:65] = case.target_logits, case.options["draft_logits"]
    target, draft = spread.to(backend.device)[:, :, 1, 4:65]
    strided = replace(case, target_logits=target, options=case.options | {"draft_logits": draft})
    one, other = case(backend, backend.device), strided(backend, backend.device)
    assert all(torch.equal(one[name], other[name]) for name in one)


@each_rule
def test_offsets_past_2_to_31(backend, operator, rule):
    case = random_case(operator, rule, sizes=[2, 3, 3], vocab=101, dtype=torch.bfloat16)
    total, stride = 8, (1 << 31) // 7 + 64  # the last row begins past 2^31 elements
    storage = torch.empty(7 * stride + 101, dtype=torch.bfloat16, device=backend.device)
    far = storage.as_strided((total, 101), (stride, 1))
    far.copy_(case.target_logits)
    one, other = case(backend, backend.device), replace(case, target_logits=far)(backend, backend.device)
    assert all(torch.equal(one[name], other[name]) for name in one)
    # As many rows as pass 2^31 elements when dense, all of them the same memory.
    rows, vocab = backend.scale((70_000, 32_000), (2_200_000, 1_000))
    row = torch.randn(1, vocab)
    huge = replace(
        case,
        target_logits=row.expand(rows, vocab),
        tokens=torch.zeros(rows, dtype=torch.int64),
        parents=torch.full((rows,), -1, dtype=torch.int32),
        cu_nodes=torch.tensor([0, 1, rows - 1, rows], dtype=torch.int32),
        options={"temperature": torch.zeros(3)},
    )
    huge.parents[2:] = 0
    out = huge(backend, backend.device)
    assert (out["tokens"][:, 0] == row.argmax()).all()


@without_reference
@each_rule
def test_batch_invariance(backend, operator, rule):
    threads = torch.get_num_threads()
    for vocab, sizes in backend.scale([(999, [3, 8, 1, 6, 2, 11, 5]), (40_007, [4, 6, 2])], [(299, [2, 3])]):
        case = random_case(operator, rule, sizes=sizes, vocab=vocab, filters=backend.scale(True, False))
        order = list(range(len(sizes)))
        batches = [[b] for b in order] + [order, order[::-1], [1, *order, 1], order * 5]
        alone: dict[int, dict[str, torch.Tensor]] = {}
        try:
            for count in backend.scale((1, 2), (1,)):
                torch.set_num_threads(count)
                for batch in batches:
                    out = case.select(batch)(backend, backend.device)
                    for i, b in enumerate(batch):
                        mine = {name: x[i] for name, x in out.items()}
                        expected = alone.setdefault(b, mine)
                        assert all(torch.equal(mine[name], expected[name]) for name in mine), (count, batch, b)
        finally:
            torch.set_num_threads(threads)


@each_rule
def test_malformed_cu_nodes(backend, operator, rule):
    case = random_case(operator, rule, sizes=[3, 3, 3, 3], vocab=13)
    case.cu_nodes = torch.tensor([0, 3, -2, 6, 1 << 30], dtype=torch.int32)
    out = assert_agrees(case, backend, backend.device)
    assert out["status"][1:].tolist() == [8, 8, 8] and (out["tokens"][1:] == -1).all()
    case.cu_nodes = torch.tensor([3, 0, 12, 13, -1], dtype=torch.int32)
    case.max_nodes, case.uniforms = 5, torch.rand(4, 5)
    out = assert_agrees(case, backend, backend.device)
    assert out["status"].tolist() == [8, 0, 8, 8] or (operator == "verify_tree" and out["status"][0] == 8)
    assert out["tokens"].shape == (4, 5) and not out["num_accepted"][[0, 2, 3]].any()


@each_rule
def test_nodes_past_max_nodes_do_not_count(backend, operator, rule):
    case = random_case(operator, rule, sizes=[6, 2, 4], vocab=13, filters=False)
    case.max_nodes, case.uniforms = 3, case.uniforms[:, :3].contiguous()
    assert_agrees(case, backend, backend.device)


def test_empty_batch(backend):
    for operator, rule in OPERATORS:
        case = random_case(operator, rule, sizes=[3], vocab=13).select([])
        out = case(backend, backend.device)
        assert out["tokens"].shape == (0, 3) and out["status"].shape == (0,)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    which=st.sampled_from(OPERATORS),
    vocab=st.integers(1, 70),
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    random_drafts=st.booleans(),
    junk=st.booleans(),
    seed=st.integers(0, 1 << 20),
)
def test_what_comes_out_is_a_path(which, vocab, sizes, random_drafts, junk, seed):
    operator, rule = which
    case = random_case(
        operator, rule, sizes=sizes, vocab=max(vocab, 9), random_drafts=random_drafts, filters=seed % 2 == 0, seed=seed
    )
    if junk:
        rng = torch.Generator().manual_seed(seed)
        case.tokens = torch.randint(-2, vocab + 2, case.tokens.shape, generator=rng)
        case.parents = torch.randint(-3, 11, case.parents.shape, generator=rng, dtype=torch.int32)
        case.target_logits[torch.rand(case.target_logits.shape, generator=rng) < 0.02] = torch.nan
    out = case(torch.ops.specdec)
    for b, size in enumerate(sizes):
        nodes, accepted = case.nodes(b), int(out["num_accepted"][b])
        tokens, count = out["tokens"][b], accepted + 1 if size else 0
        assert ((tokens[:count] >= 0) & (tokens[:count] < case.target_logits.shape[1])).all()
        assert (tokens[count:] == -1).all() and not out["logprobs"][b, count:].any()
        assert (out["logprobs"][b, :count] <= 1e-5).all()
        assert 0 <= out["status"][b] < 16
        path = out["path"][b].tolist() if operator == "verify_tree" else [*range(count)] + [-1] * (99 - count)
        assert all(i == -1 for i in path[count:])
        for i, node in enumerate(path[:count]):
            assert node == 0 if i == 0 else case.parents[nodes[node]] == path[i - 1] or operator == "verify_chain"
            assert i == 0 or case.tokens[nodes[node]] == tokens[i - 1]


@each_rule
def test_opcheck_and_compile(operator, rule):
    case = random_case(operator, rule, sizes=[3, 1, 4], vocab=11)
    parents = [case.parents] if operator == "verify_tree" else []
    inputs = (case.target_logits, case.tokens, *parents, case.cu_nodes, case.uniforms)
    options = case.options | {"rule": rule, "max_nodes": case.max_nodes}
    torch.library.opcheck(getattr(torch.ops.specdec, operator), inputs, options)
    wrapper = getattr(specdec_ops, operator)

    def step(*inputs: torch.Tensor) -> torch.Tensor:
        return wrapper(*inputs, **options)[0] + 1

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*inputs), step(*inputs))


BAD_ARGUMENTS = [
    ("target_logits", lambda x: x[0], r"target_logits: expected shape \[\*, \*\], got \[11\]"),
    ("target_logits", lambda x: x.double(), "target_logits: expected dtype .*, got float64"),
    ("target_logits", lambda x: x.T.contiguous().T, r"target_logits: .* last dimension of stride 1, .* \[1, 8\]"),
    ("target_logits", lambda x: x[:, :0], "target_logits"),
    ("tokens", lambda x: x.int(), "tokens: expected dtype int64, got int32"),
    ("tokens", lambda x: x[1:], r"tokens: expected shape \[8\], got \[7\]"),
    ("parents", lambda x: x.long(), "parents: expected dtype int32, got int64"),
    ("parents", lambda x: x[1:], r"parents: expected shape \[8\], got \[7\]"),
    ("cu_nodes", lambda x: x.long(), "cu_nodes: expected dtype int32, got int64"),
    ("cu_nodes", lambda x: x[:0], "cu_nodes"),
    ("uniforms", lambda x: x[:, :2].contiguous(), r"uniforms: expected shape \[3, 4\], got \[3, 2\]"),
    ("uniforms", lambda x: x.double(), "uniforms: expected dtype float32, got float64"),
    ("draft_logits", lambda x: x[1:], r"draft_logits: expected shape \[8, 11\], got \[7, 11\]"),
    ("draft_logits", lambda x: x.double(), "draft_logits: expected dtype"),
    ("temperature", lambda x: x[1:], r"temperature: expected shape \[3\], got \[2\]"),
    ("temperature", lambda x: x.half(), "temperature: expected dtype float32, got float16"),
    ("draft_temperature", lambda x: x[1:], r"draft_temperature: expected shape \[3\], got \[2\]"),
    ("top_k", lambda x: x.long(), "top_k: expected dtype int32, got int64"),
    ("top_p", lambda x: x[::2], r"top_p: expected shape \[3\], got \[2\]"),
    ("min_p", lambda x: x[:, None], r"min_p: expected shape \[3\], got \[3, 1\]"),
    ("rule", lambda _: "fastest", "rule: expected .*, got .*fastest"),
    ("max_nodes", lambda _: 0, "max_nodes: expected 1 to"),
]


@without_reference
@pytest.mark.parametrize(
    ("operator", "argument", "change", "message"),
    [(name, *bad) for name in OUTPUTS for bad in BAD_ARGUMENTS if (name, bad[0]) != ("verify_chain", "parents")],
)
def test_bad_arguments(backend, operator, argument, change, message):
    case = random_case(operator, "typical", sizes=[3, 1, 4], vocab=11)
    inputs = ("target_logits", "tokens", "parents", "cu_nodes", "uniforms")
    tensors = {name: getattr(case, name) for name in inputs} | case.options
    if operator == "verify_chain":
        del tensors["parents"]
    arguments = {name: x.to(backend.device) for name, x in tensors.items()}
    arguments |= {"rule": "typical", "max_nodes": case.max_nodes}
    arguments[argument] = change(arguments[argument])
    with pytest.raises(ValueError, match=message):
        getattr(backend, operator)(**arguments)
