import math
import subprocess
import sys
from typing import Any

import pytest
import torch
from backends import without_reference
from hypothesis import given, settings
from hypothesis import strategies as st

import specdec_ops
from specdec_ops.reference.distribution import processed

INF, NAN = math.inf, math.nan
LAST_UNIFORM = 1 - 2**-24


def floats(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def on(backend: Any, options: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: x.to(backend.device) for name, x in options.items()}


def sample(
    backend: Any, logits: torch.Tensor, uniforms: torch.Tensor, **options: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    out = backend.sample(logits.to(backend.device), uniforms.to(backend.device), **on(backend, options))
    return tuple(x.cpu() for x in out)


def draws_of(backend: Any) -> int:
    return backend.scale(200, 20)


def frequencies(backend: Any, row: torch.Tensor, **options: float) -> torch.Tensor:
    """The share of each id among draws with evenly spread uniforms: the distribution, to within 1 / draws."""
    draws = draws_of(backend)
    uniforms = (torch.arange(draws) + 0.5) / draws
    dtypes = {name: torch.int32 if name == "top_k" else torch.float32 for name in options}
    tensors = {name: torch.full((draws,), value, dtype=dtypes[name]) for name, value in options.items()}
    token, logprob, status = sample(backend, row.expand(draws, -1), uniforms, **tensors)
    assert not status.any()
    shares = torch.bincount(token, minlength=row.numel()) / draws
    torch.testing.assert_close(logprob.exp(), shares[token], atol=1.5 / draws, rtol=0)
    return shares


def rows_of_all_kinds(vocab: int, dtype: torch.dtype) -> torch.Tensor:
    rng = torch.Generator().manual_seed(vocab)
    normal = torch.randn(7, vocab, generator=rng)
    rows = 3 * normal
    rows[1] = 30 * normal[1]  # peaked
    rows[2] = 0.01 * normal[2]  # flat
    rows[3] = (2 * normal[3]).round()  # many ties
    rows[4] = normal[4].sign() * torch.exp(8 * normal[4].abs()).clamp(max=60000)  # heavy tails, outliers
    rows[5, 1::3] = -INF
    rows[6] = 1.5  # all equal
    return rows.to(dtype)


def random_options(rows: int, vocab: int, seed: int = 0) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return {
        "temperature": 0.3 + 1.5 * torch.rand(rows, generator=rng),
        "top_k": torch.randint(0, min(vocab + 1, 300), (rows,), generator=rng, dtype=torch.int32),
        "top_p": 0.3 + 0.8 * torch.rand(rows, generator=rng),
        "min_p": 0.3 * torch.rand(rows, generator=rng) - 0.2,
    }


DTYPES = [torch.float32, torch.bfloat16, torch.float16]
VOCABS = [1, 2, 17, 64, 300, 1000, 4096, 9001]


def vocab_and(vocab: int, *others: Any) -> Any:
    marks = pytest.mark.large(f"{vocab} logits a row; 300 are more than a block") if vocab > 300 else ()
    return pytest.param(vocab, *others, marks=marks)


SETTINGS = [vocab_and(vocab, dtype, None) for vocab in VOCABS for dtype in DTYPES] + [
    vocab_and(vocab, torch.float32, names)
    for vocab in (17, 9001)
    for names in ([], ["temperature"], ["top_k"], ["top_p"], ["min_p"])
]


@pytest.mark.parametrize(("vocab", "dtype", "names"), SETTINGS, ids=str)
def test_agrees_with_the_reference(backend, vocab, dtype, names):
    rows = rows_of_all_kinds(vocab, dtype).repeat(backend.scale(3, 1), 1)
    options = random_options(len(rows), vocab)
    options = {name: options[name] for name in names} if names is not None else options
    uniforms = torch.rand(len(rows), generator=torch.Generator().manual_seed(1))
    token, logprob, status = sample(backend, rows, uniforms, **options)
    assert not status.any()
    reference = specdec_ops.reference.sample
    below, above = (reference(rows, (uniforms + hair).clamp(0, 1), **options)[0] for hair in (-2e-5, 2e-5))
    # The token may differ by what a hair's change of the uniform makes of it; its probability may not.
    assert ((below <= token) & (token <= above)).all()
    assert (below == above).float().mean() > (0.8 if vocab < 4096 else 0.3)
    for i, row in enumerate(rows):
        p = processed(row, **{name: x[i].item() for name, x in options.items()})
        torch.testing.assert_close(logprob[i].double(), p[token[i]].log(), atol=3e-5, rtol=1e-5)


def test_a_known_distribution(backend):
    row = floats(0.1, 0.0, 0.2, 0.3, 0.4).log()
    assert frequencies(backend, row).tolist() == pytest.approx([0.1, 0, 0.2, 0.3, 0.4])
    half = frequencies(backend, row, temperature=0.5)  # probabilities squared, over 0.3
    assert half.tolist() == pytest.approx([1 / 30, 0, 4 / 30, 9 / 30, 16 / 30], abs=1 / draws_of(backend))
    flat = frequencies(backend, row, temperature=math.inf)
    assert flat.tolist() == pytest.approx([0.25, 0, 0.25, 0.25, 0.25], abs=1 / draws_of(backend))


def test_filters_and_their_order(backend):
    row = floats(0.1, 0.2, 0.3, 0.4).log()

    def kept(**options: float) -> list[int]:
        return frequencies(backend, row, **options).nonzero()[:, 0].tolist()

    assert kept(top_k=2) == [2, 3]
    assert kept(top_p=0.5) == [2, 3]  # the token that crosses top_p stays
    assert kept(top_p=0.35) == [3]
    assert kept(top_p=0.0) == [3] and kept(top_p=-1.0) == [3]
    assert kept(min_p=0.6) == [2, 3]
    assert kept(min_p=1.0) == [3] and kept(min_p=7.0) == [3]
    assert kept(top_k=2, top_p=0.5) == [3]  # 4/7 of what top-k left
    assert kept(top_p=0.85, min_p=0.6) == [2, 3]
    assert kept(temperature=2.0, top_p=0.5) == [2, 3]  # 0.33, 0.28, 0.23, 0.16: temperature comes first
    assert kept(temperature=2.0, top_p=0.62) == [1, 2, 3]
    for off in (
        {"top_k": 0},
        {"top_k": -1},
        {"top_k": 4},
        {"top_k": 5},
        {"top_p": 1.0},
        {"top_p": 2.0},
        {"min_p": -1.0},
    ):
        assert kept(**off) == [0, 1, 2, 3]


def test_ties_at_a_threshold_are_kept(backend):
    row = floats(1, 2, 1, 2, 0, 1)
    assert (frequencies(backend, row, top_k=1) > 0).tolist() == [False, True, False, True, False, False]
    assert (frequencies(backend, row, top_k=3) > 0).tolist() == [True, True, True, True, False, True]
    assert (frequencies(backend, row, top_p=0.65) > 0).tolist() == [True, True, True, True, False, True]
    assert (frequencies(backend, row, top_p=0.1) > 0).tolist() == [False, True, False, True, False, False]


@pytest.mark.parametrize("top_k", [1, 2, 33, 1000, 4095, 20_000, 49_999])
def test_top_k_keeps_exactly_k(backend, top_k):
    """Any two logits differ, some by one unit in the last place; every kept id has the probability 1 / k."""
    vocab = backend.scale(50_000, 600)
    top_k = min(top_k, vocab - 1)
    steps = torch.randperm(vocab, generator=torch.Generator().manual_seed(top_k))
    row = (torch.tensor(1.0).view(torch.int32) + steps.int()).view(torch.float32)[None]
    row[row < 1.001] *= -1
    expected = row[0].double().sort(descending=True).values[:top_k].softmax(0)
    token, logprob, _ = sample(backend, row, floats(0.5), top_k=torch.tensor([top_k], dtype=torch.int32))
    assert (row > row[0, token]).sum() < top_k
    assert logprob.item() == pytest.approx(math.log(expected[(row > row[0, token]).sum()]), abs=1e-5)


@pytest.mark.parametrize("filters", [{"top_k": 4}, {"top_k": 9000}, {"top_p": LAST_UNIFORM}], ids=str)
def test_filters_that_keep_all_there_is(backend, filters):
    row = torch.full((9001,), -INF)
    row[[3, 5000, 9000]] = floats(0.2, 0.5, 0.3).log()
    kept = frequencies(backend, row, **filters)
    torch.testing.assert_close(kept[[3, 5000, 9000]], floats(0.2, 0.5, 0.3), atol=1.5 / draws_of(backend), rtol=0)
    options = {name: torch.tensor([value]).to(backend.device) for name, value in filters.items()}
    options = {name: x.int() if name == "top_k" else x for name, x in options.items()}
    best, _ = backend.sample_topk(row[None].to(backend.device), None, 3, **options)
    assert best.tolist() == [[5000, 9000, 3]]


@without_reference
def test_outliers_of_every_size(backend):
    """Pivots spread evenly over the values would need many rounds here."""
    row = torch.cat([2.0 ** torch.arange(-120, 127, dtype=torch.float32), torch.randn(5000) * 1e-3, floats(-INF)])
    row = row[torch.randperm(len(row), generator=torch.Generator().manual_seed(0))]
    best = row.double().sort(descending=True).values
    for top_k in (1, 3, 100, 240, 2500, 5247):
        options = {"top_k": torch.tensor([top_k], dtype=torch.int32), "temperature": floats(8e37)}
        token, logprob, status = sample(backend, row[None], floats(0.3), **options)
        rank = int((row > row[token]).sum())
        assert status == 0 and rank < top_k
        expected = (best[:top_k] / 8e37).log_softmax(0)[rank]
        assert logprob.item() == pytest.approx(expected.item(), abs=1e-5)


def test_greedy(backend):
    rows = torch.randn(6, 9001, generator=torch.Generator().manual_seed(0))
    rows[0, [70, 5000, 9000]] = 10.0
    rows[1, 9000] = 11.0
    rows[2, 0] = 12.0
    rows[3] = -INF
    rows[3, 4097] = -1e30
    for dtype in DTYPES[:2]:
        token, logprob, status = sample(backend, rows.to(dtype), torch.full((6,), 0.9), temperature=torch.zeros(6))
        assert token[:4].tolist() == [70, 9000, 0, 4097] and token[4:].equal(rows.to(dtype)[4:].argmax(1))
        assert not logprob.any() and not status.any()
    mixed = sample(backend, rows, torch.full((6,), 0.9), temperature=floats(0, 1, 0, 1, 1, 0))
    assert mixed[0][0] == 70 and mixed[0][5] == rows[5].argmax() and mixed[1][4] < -1


@pytest.mark.parametrize("vocab", [6, 9001])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_bad_rows(backend, vocab, temperature):
    rows = torch.zeros(7, vocab)
    rows[:, 2] = 1.0
    rows[0, vocab - 1] = NAN
    rows[1] = NAN
    rows[2, 0] = INF
    rows[3] = -INF
    rows[4, 0], rows[4, 1] = NAN, INF
    rows[5] = INF
    rows[6, 3:] = -INF
    options = random_options(7, vocab) | {"temperature": torch.full((7,), temperature)}
    token, logprob, status = sample(backend, rows, torch.full((7,), 0.9), **options)
    assert status.tolist() == [1, 1, 1, 2, 1, 1, 0]
    assert token[:6].tolist() == [2, 0, 2, 0, 2, 0] and not logprob[:6].any()
    tokens, logprobs = backend.sample_topk(rows.to(backend.device), None, 2, **on(backend, options))
    assert tokens[:6].tolist() == [[2, -1], [0, -1], [2, -1], [0, -1], [2, -1], [0, -1]]
    assert logprobs[:6].tolist() == [[0, -INF]] * 6


def test_an_id_without_mass_is_never_drawn(backend):
    for vocab in backend.scale((5, 9001, 40_000), (5, 300)):
        row = torch.full((vocab,), -INF)
        row[vocab // 3 : vocab // 2 + 1] = 0.0
        uniforms = floats(0.0, LAST_UNIFORM, 1.0, 2.0, -1.0, NAN, INF, 2**-149)
        rows = row.expand(len(uniforms), -1)
        token, _, status = sample(backend, rows, uniforms)
        assert not status.any() and row[token].isfinite().all()
        assert token[0] == vocab // 3 and token[1] == vocab // 2
        # An id whose weight is too small for float32 does no harm either.
        row[:] = torch.where(row == 0, 0.0, -200.0)
        token = sample(backend, row.expand(len(uniforms), -1), uniforms)[0]
        assert ((token >= 0) & (token < vocab)).all() and token[1] == vocab // 2


@without_reference
def test_bad_parameters(backend):
    """Whatever they are, the token is in range and has mass."""
    bad = floats(NAN, INF, -INF, 2.0, -1.0, 1.0, 1e30, -1e-30, 1e-45, 0.0, 1e-38)
    rows = torch.randn(len(bad), 100, generator=torch.Generator().manual_seed(0))
    rows[:, ::2] = -INF
    for name in ("temperature", "top_p", "min_p"):
        token, logprob, status = sample(backend, rows, torch.full((len(bad),), 0.7), **{name: bad})
        assert (token % 2 == 1).all() and (token < 100).all() and (logprob <= 1e-6).all() and not status.any()
        tokens, _ = backend.sample_topk(rows.to(backend.device), None, 3, **on(backend, {name: bad}))
        assert (tokens[:, 0] == rows.argmax(1).to(backend.device)).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("vocab", [3, 61, vocab_and(300), vocab_and(9001)])
def test_the_k_best(backend, vocab, dtype):
    rows = rows_of_all_kinds(vocab, dtype)[[0, 1, 2, 3, 5, 6]].to(backend.device)  # float64 can hold these
    for k in backend.scale((1, 3, min(vocab, 40), vocab if vocab < 100 else min(vocab, 999)), (1, 3, min(vocab, 9))):
        tokens, logprobs = backend.sample_topk(rows, None, k)
        order = rows.double().sort(dim=1, descending=True, stable=True)
        found = order.values[:, :k].isfinite()
        assert tokens.equal(torch.where(found, order.indices[:, :k], -1))
        expected = rows.double().log_softmax(1).gather(1, order.indices[:, :k])
        torch.testing.assert_close(logprobs.double(), expected, atol=3e-5, rtol=1e-5)
        greedy, scores = backend.sample_topk(
            rows, torch.rand(len(rows), k, device=backend.device), k, temperature=torch.zeros(6, device=backend.device)
        )
        assert greedy.equal(tokens) and scores.equal(logprobs)


@pytest.mark.parametrize("uniform", [False, True])
def test_fewer_than_k(backend, uniform):
    rows = torch.zeros(3, 8)
    rows[0, 2:] = -INF
    rows[1, 5] = 100.0
    uniforms = torch.rand(3, 4, generator=torch.Generator().manual_seed(0)).to(backend.device) if uniform else None
    options = {"top_k": torch.tensor([0, 0, 3], dtype=torch.int32), "min_p": floats(0, 0.5, 0)}
    tokens, logprobs = backend.sample_topk(rows.to(backend.device), uniforms, 4, **on(backend, options))
    assert sorted(tokens[0].tolist()) == [-1, -1, 0, 1] and tokens[0, 2:].tolist() == [-1, -1]
    assert tokens[1].tolist() == [5, -1, -1, -1] and logprobs[1].tolist() == [0, -INF, -INF, -INF]
    assert len(set(tokens[2].tolist())) == 4  # ties at the top-k threshold are kept, so all eight ids are there
    assert logprobs[0].cpu().tolist() == pytest.approx([-math.log(2)] * 2 + [-INF] * 2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_distinct_draws_agree_with_the_reference(backend, dtype):
    vocab, k, copies = backend.scale((500, 4, 12), (300, 3, 3))
    rows = rows_of_all_kinds(vocab, dtype)[[0, 1, 3, 5]].repeat(copies, 1)
    uniforms = torch.rand(len(rows), k, generator=torch.Generator().manual_seed(2))
    options = random_options(len(rows), vocab)
    options["top_k"][::2] = 0
    tokens, logprobs = (
        x.cpu()
        for x in backend.sample_topk(rows.to(backend.device), uniforms.to(backend.device), k, **on(backend, options))
    )
    reference = specdec_ops.reference.sample_topk
    below, above = (reference(rows, (uniforms + hair).clamp(0, 1), k, **options)[0] for hair in (-1e-5, 1e-5))
    clear = (below == above).all(1)
    assert clear.float().mean() > 0.8
    assert tokens[clear].equal(below[clear])
    expected = reference(rows, uniforms, k, **options)[1]
    torch.testing.assert_close(logprobs[clear], expected[clear], atol=3e-5, rtol=1e-5)
    for row in tokens.tolist():
        assert len(set(row) - {-1}) == sum(token >= 0 for token in row)


def test_distinct_draws_are_without_replacement(backend):
    """Over a grid of both uniforms, the pair (x, y) has the share p(x) p(y) / (1 - p(x))."""
    p, steps = floats(0.15, 0.5, 0.0, 0.35), backend.scale(60, 10)
    grid = (torch.arange(steps) + 0.5) / steps
    uniforms = torch.cartesian_prod(grid, grid).to(backend.device)
    tokens, _ = backend.sample_topk(p.log().expand(len(uniforms), -1).to(backend.device), uniforms, 2)
    shares = torch.bincount((tokens[:, 0] * 4 + tokens[:, 1]).cpu(), minlength=16).view(4, 4) / len(uniforms)
    expected = p[:, None] * p / (1 - p[:, None])
    expected.fill_diagonal_(0)
    torch.testing.assert_close(shares, expected, atol=1.5 / steps, rtol=0)


def test_what_is_left_may_be_any_number_of_magnitudes_smaller(backend):
    for vocab in backend.scale((6, 20_000), (6, 300)):
        row = torch.full((1, vocab), -INF)
        row[0, [vocab - 1, 1, 3, 2]] = floats(0, -100, -300, -300)
        uniforms = floats(0.5, 0.5, 0.7, 0.5)[None]
        tokens, logprobs = backend.sample_topk(row.to(backend.device), uniforms.to(backend.device), 4)
        assert tokens.tolist() == [[vocab - 1, 1, 3, 2]]
        assert logprobs[0].tolist() == pytest.approx([0, -100, -300, -300])


@without_reference
@pytest.mark.parametrize("names", [[], None], ids=str)
def test_a_row_does_not_depend_on_the_batch(backend, names):
    vocab, threads = backend.scale(70_001, 301), torch.get_num_threads()
    rows = rows_of_all_kinds(vocab, torch.float32)[:4].to(backend.device)
    options = on(backend, random_options(4, vocab) if names is None else {})
    uniforms = torch.rand(4, 3, generator=torch.Generator().manual_seed(0)).to(backend.device)
    found: dict[tuple[int, str], torch.Tensor] = {}
    try:
        for count in backend.scale((1, 2, 3), (1,)):
            torch.set_num_threads(count)
            for batch in ([0], [1], [2], [3], [0, 1, 2, 3], [3, 3, 2, 1, 0, 2, 1]):
                mine = {name: x[batch] for name, x in options.items()}
                out = [
                    *backend.sample(rows[batch], uniforms[batch][:, 0].contiguous(), **mine),
                    *backend.sample_topk(rows[batch], uniforms[batch], 3, **mine),
                    *backend.sample_topk(rows[batch], None, 3, **mine),
                ]
                for at, i in enumerate(batch):
                    for which, x in enumerate(out):
                        assert torch.equal(x[at], found.setdefault((i, str(which)), x[at]))
    finally:
        torch.set_num_threads(threads)


def test_rows_need_not_be_dense(backend):
    rows = torch.randn(5, 100, generator=torch.Generator().manual_seed(0)).to(backend.device)
    spread = torch.full((5, 3, 150), NAN, device=backend.device)
    spread[:, 1, 7:107] = rows
    uniforms = torch.rand(5, device=backend.device)
    for one, other in zip(backend.sample(rows, uniforms), backend.sample(spread[:, 1, 7:107], uniforms), strict=True):
        assert torch.equal(one, other)
    # The last row begins past 2^31 elements.
    far = torch.empty(4 * (1 << 29) + 200, dtype=torch.bfloat16, device=backend.device).as_strided(
        (5, 100), (1 << 29, 1)
    )
    far.copy_(rows)
    for one, other in zip(backend.sample(rows.bfloat16(), uniforms), backend.sample(far, uniforms), strict=True):
        assert torch.equal(one, other)


def test_empty(backend):
    none = torch.empty(0, 7, device=backend.device)
    token, logprob, status = backend.sample(none, none[:, 0].contiguous())
    assert token.shape == logprob.shape == status.shape == (0,)
    assert backend.sample_topk(none, None, 3)[0].shape == (0, 3)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    vocab=st.integers(1, 200),
    k=st.integers(1, 12),
    seed=st.integers(0, 1 << 20),
    spread=st.sampled_from([0.0, 0.1, 1.0, 10.0, 1000.0]),
    dtype=st.sampled_from(DTYPES),
    masked=st.floats(0, 1),
    junk=st.booleans(),
)
def test_what_comes_out_is_allowed(vocab, k, seed, spread, dtype, masked, junk):
    rng = torch.Generator().manual_seed(seed)
    k = min(k, vocab)
    rows = (spread * torch.randn(6, vocab, generator=rng)).clamp(-60000, 60000).to(dtype)
    rows[torch.rand(rows.shape, generator=rng) < masked] = -INF
    if junk:
        rows[:3][torch.rand(3, vocab, generator=rng) < 0.1] = NAN if seed % 2 else INF
    options = random_options(6, vocab, seed)
    token, logprob, status = specdec_ops.sample(rows, torch.rand(6, generator=rng), **options)
    assert ((token >= 0) & (token < vocab)).all() and (logprob <= 1e-5).all()
    for i, row in enumerate(rows.float()):
        usable = not (row.isnan() | (row == INF)).any() and bool(row.isfinite().any())
        assert (status[i] == 0) == usable
        if usable:
            assert row[token[i]].isfinite()
            top_k = int(options["top_k"][i])
            assert (row > row[token[i]]).sum() < (top_k if 0 < top_k < vocab else vocab)
    uniforms = torch.rand(6, k, generator=rng)
    for tokens, logprobs in (
        specdec_ops.sample_topk(rows, None, k, **options),
        specdec_ops.sample_topk(rows, uniforms, k, **options),
    ):
        assert ((tokens >= -1) & (tokens < vocab)).all()
        assert ((tokens == -1) == (logprobs == -INF)).all()
        assert (tokens[:, :-1].ge(0) | tokens[:, 1:].lt(0)).all()  # -1 only at the end
        for ids in tokens.tolist():
            assert len({x for x in ids if x >= 0}) == sum(x >= 0 for x in ids)


def test_opcheck_and_compile():
    rows, uniforms = torch.randn(3, 11), torch.rand(3)
    options = random_options(3, 11)
    torch.library.opcheck(torch.ops.specdec.sample, (rows, uniforms), options)
    torch.library.opcheck(torch.ops.specdec.sample_topk, (rows, torch.rand(3, 2), 2), options)
    torch.library.opcheck(torch.ops.specdec.sample_topk, (rows, None, 2))

    def step(rows: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
        token = specdec_ops.sample(rows, uniforms, **options)[0]
        return specdec_ops.sample_topk(rows, None, 2)[0] + token[:, None]

    assert torch.equal(torch.compile(step, fullgraph=True, backend="aot_eager")(rows, uniforms), step(rows, uniforms))


@without_reference
def test_bad_arguments(backend):
    rows, uniforms = torch.randn(3, 11, device=backend.device), torch.rand(3, device=backend.device)
    for call, message in [
        (lambda: backend.sample(rows[0], uniforms), r"logits: expected shape \[\*, \*\], got \[11\]"),
        (lambda: backend.sample(rows.double(), uniforms), "logits: expected dtype .*float16, got float64"),
        (lambda: backend.sample(rows.T.contiguous().T, uniforms), "logits: expected a last dimension of stride 1"),
        (lambda: backend.sample(rows[:, :0], uniforms), "logits: expected at least one column"),
        (lambda: backend.sample(rows, uniforms[:2]), r"uniforms: expected shape \[3\], got \[2\]"),
        (lambda: backend.sample(rows, uniforms.double()), "uniforms: expected dtype float32, got float64"),
        (
            lambda: backend.sample(rows, uniforms, top_k=torch.ones_like(uniforms)),
            "top_k: expected dtype int32, got float32",
        ),
        (lambda: backend.sample(rows, uniforms, top_p=uniforms[:1]), r"top_p: expected shape \[3\], got \[1\]"),
        (lambda: backend.sample_topk(rows, None, 0), "k: expected 1 to 11, got 0"),
        (lambda: backend.sample_topk(rows, None, 12), "k: expected 1 to 11, got 12"),
        (lambda: backend.sample_topk(rows, uniforms, 2), r"uniforms: expected shape \[3, 2\], got \[3\]"),
        (lambda: backend.sample_topk(rows, None, 2, min_p=uniforms[:1]), r"min_p: expected shape \[3\], got \[1\]"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()


def test_shapes_that_cannot_be_are_not_traced():
    rows = torch.empty(3, 11, device="meta")
    for k in (0, 12):
        with pytest.raises(ValueError, match=f"k: expected 1 to 11, got {k}"):
            torch.ops.specdec.sample_topk(rows, None, k)


def test_no_gradient_is_an_error():
    """Instead of a gradient that is left out."""
    rows = torch.randn(3, 11, requires_grad=True)
    _, logprob, _ = specdec_ops.sample(rows, torch.rand(3))
    with pytest.raises(RuntimeError, match="derivative for specdec::sample is not implemented"):
        logprob.sum().backward()
    assert not specdec_ops.sample(rows.detach(), torch.rand(3))[1].requires_grad


OUT_OF_MEMORY = """
import resource, torch, specdec_ops
torch.set_num_threads(2)
logits, uniforms, top_k = torch.randn(2, 1 << 24), torch.rand(2), torch.full((2,), 9, dtype=torch.int32)
specdec_ops.sample(logits[:, :100000], uniforms, top_k=top_k)  # starts the threads
in_use = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
# A row's buffer is 64 MiB: more than malloc ever takes from what it has kept.
resource.setrlimit(resource.RLIMIT_AS, (in_use + (1 << 20), resource.RLIM_INFINITY))
try:
    specdec_ops.sample(logits, uniforms, top_k=top_k)
except (MemoryError, RuntimeError) as error:
    print("raised", error)
"""


@pytest.mark.slow
def test_memory_that_runs_out_is_an_error():
    """In one thread of several: the others must not wait for it."""
    run = [sys.executable, "-c", OUT_OF_MEMORY]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120)  # it hangs, or it does not
    assert done.returncode == 0 and "raised" in done.stdout and "alloc" in done.stdout, done.stdout + done.stderr


def test_check_names_the_requests():
    specdec_ops.check(torch.zeros(4, dtype=torch.int32))
    with pytest.raises(RuntimeError, match=r"request 1: .*NaN.*; request 3: .*no finite.*, .*vocabulary") as error:
        specdec_ops.check(torch.tensor([0, 1, 0, 6], dtype=torch.int32))
    with pytest.raises(RuntimeError, match=r"request 0: a draft token .*, unknown bits 0x60$"):
        specdec_ops.check(torch.tensor([0x64], dtype=torch.int32))
    for status in (torch.zeros(2, 3, dtype=torch.int32), torch.zeros(2)):
        with pytest.raises(ValueError, match=r"status: expected int32 \[B\], got "):
            specdec_ops.check(status)
    assert "request 0" not in str(error.value) and "request 2" not in str(error.value)
