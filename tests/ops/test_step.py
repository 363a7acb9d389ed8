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
INT32_LIMITS = st.sampled_from([-(2**31), 2**31 - 1])


def ints(values, device="cpu") -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def longs(values, device="cpu") -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device=device)


# advance


def test_advance(backend):
    device = backend.device
    history = longs([[1, 2, 0, 0, 0, 0]] * 6, device)
    lengths = ints([2] * 6, device)
    finished = torch.tensor([False, False, False, False, True, False], device=device)
    tokens = longs([[5, 6, 7, -1], [5, 3, 7, 8], [5, 6, 7, 8], [5, -1, 7, 8], [5, 6, 7, 8], [3, 4, 5, 6]], device)
    num_accepted, eos = ints([2, 3, 3, 3, 3, -1], device), longs([3, 4], device)
    root = backend.advance(history, lengths, finished, tokens, num_accepted, eos, ints([6, 6, 5, 6, 6, 6], device))
    assert history.tolist() == [
        [1, 2, 5, 6, 7, 0],
        [1, 2, 5, 3, 0, 0],  # cut after the end token
        [1, 2, 5, 6, 7, 0],  # cut at its longest length
        [1, 2, 5, 0, 0, 0],  # no token
        [1, 2, 0, 0, 0, 0],  # finished before
        [1, 2, 0, 0, 0, 0],  # nothing accepted, not even the token after the root
    ]
    assert lengths.tolist() == [5, 4, 5, 3, 2, 2]
    assert finished.tolist() == [False, True, True, False, True, False]
    assert root.tolist() == [7, 3, 7, 5, 2, 2]


def test_advance_stops_at_the_end_of_the_history(backend):
    device = backend.device
    history, lengths = longs([[1, 2, 3], [0, 0, 0]], device), ints([2, 0], device)
    finished = torch.zeros(2, dtype=torch.bool, device=device)
    arguments = (longs([[7, 8, 9]] * 2, device), ints([2, -1], device), longs([], device), ints([100, 100], device))
    assert backend.advance(history, lengths, finished, *arguments).tolist() == [7, 0]
    assert history.tolist() == [[1, 2, 7], [0, 0, 0]] and lengths.tolist() == [3, 0]
    assert finished.tolist() == [True, False]


def test_advance_with_end_tokens_of_each_request(backend):
    device = backend.device
    history, lengths = longs([[1, 0, 0, 0]] * 3, device), ints([1] * 3, device)
    finished = torch.zeros(3, dtype=torch.bool, device=device)
    eos = longs([[5, 5], [6, 9], [-1, -1]], device)
    limits = ints([4] * 3, device)
    backend.advance(history, lengths, finished, longs([[5, 6, -1]] * 3, device), ints([1] * 3, device), eos, limits)
    assert history.tolist() == [[1, 5, 0, 0], [1, 5, 6, 0], [1, 5, 6, 0]]
    assert finished.tolist() == [True, True, False]


@given(st.data())
@SETTINGS
def test_advance_equals_the_reference(backend, data):
    def draw(elements, *shape: int) -> list:
        return data.draw(st.lists(elements, min_size=(n := torch.Size(shape).numel()), max_size=n))

    batch, capacity, width, num_eos = (data.draw(st.integers(0, n)) for n in (4, 9, 5, 2))
    small = st.integers(-2, 10) | INT32_LIMITS
    ids = st.integers(-1, 6) | st.just(2**62)
    state = [
        longs(draw(ids, batch, capacity)).reshape(batch, capacity),
        ints(draw(small, batch)),
        torch.tensor(draw(st.booleans(), batch), dtype=torch.bool),
    ]
    tokens = longs(draw(ids, batch, width)).reshape(batch, width)
    eos = longs(draw(ids, batch, num_eos)).reshape(batch, num_eos)
    eos = eos if data.draw(st.booleans()) or batch == 0 else eos[0].contiguous()
    rest = (tokens, ints(draw(small, batch)), eos, ints(draw(small, batch)))
    actual = [x.clone().to(backend.device) for x in state]
    root = backend.advance(*actual, *(x.to(backend.device) for x in rest))
    assert root.tolist() == reference.advance(*state, *rest).tolist()
    assert [x.tolist() for x in actual] == [x.tolist() for x in state]


# adapt_draft_length


def speed(a: float, k: int, cost: float) -> float:
    return sum(a**i for i in range(k + 1)) / (1 + cost * k)


def test_rate_counts_the_drafts_up_to_the_first_rejection(backend):
    device = backend.device
    rate = torch.full((6,), 0.5, device=device)
    backend.adapt_draft_length(rate, ints([4, 4, 4, 0, 1, 4], device), ints([4, 2, 0, 0, 1, 9], device), decay=0.75)
    expected = [0.625, 0.53125, 0.46875, 0.5, 0.625, 0.625]
    torch.testing.assert_close(rate.cpu(), torch.tensor(expected))


@pytest.mark.parametrize(
    ("a", "cost", "expected"),
    [(0.0, 0.1, 1), (0.5, 0.05, 3), (0.8, 0.1, 6), (0.9, 0.01, 8), (1.0, 0.5, 8), (1.0, 1.0, 1), (0.5, 0.0, 8)],
)
def test_known_draft_lengths(backend, a, cost, expected):
    rate, none = torch.tensor([a], device=backend.device), ints([0], backend.device)
    chosen = backend.adapt_draft_length(rate, none, none, min_draft=1, max_draft=8, draft_cost=cost)
    assert chosen.tolist() == [expected] == [max(range(1, 9), key=lambda k: (speed(a, k, cost), -k))]


@given(st.data())
@SETTINGS
def test_draft_length_is_the_best_of_its_range(backend, data):
    batch = data.draw(st.integers(0, 5))
    rates = st.floats(0, 1, width=32) | st.sampled_from([float("nan"), float("inf"), -1.0, 2.0])
    counts = st.integers(-1, 9) | INT32_LIMITS
    rate = torch.tensor(data.draw(st.lists(rates, min_size=batch, max_size=batch)), dtype=torch.float32)
    drafted, accepted = (ints(data.draw(st.lists(counts, min_size=batch, max_size=batch))) for _ in range(2))
    decay, cost = data.draw(st.floats(0, 1)), data.draw(st.floats(0, 2))
    low = data.draw(st.integers(0, 5))
    high = data.draw(st.integers(low, 20))
    limits = {"decay": decay, "min_draft": low, "max_draft": high, "draft_cost": cost}
    expected, actual = rate.clone(), rate.to(backend.device)
    expected_draft = reference.adapt_draft_length(expected, drafted, accepted, **limits)
    num_draft = backend.adapt_draft_length(actual, drafted.to(backend.device), accepted.to(backend.device), **limits)
    torch.testing.assert_close(actual.cpu(), expected, equal_nan=True)
    assert num_draft.dtype == torch.int32
    for a, got, want in zip(
        expected.nan_to_num(0).clamp(0, 1).tolist(), num_draft.tolist(), expected_draft, strict=True
    ):
        assert low <= got <= high
        # Lengths whose speeds are equal up to rounding may be exchanged, no others.
        assert speed(a, got, cost) == pytest.approx(speed(a, int(want), cost), rel=1e-5)
        assert speed(a, got, cost) >= (1 - 1e-5) * max(speed(a, k, cost) for k in range(low, high + 1))


@pytest.mark.large("thousands of steps, for a mean")
def test_rate_converges_to_the_acceptance_probability(backend):
    torch.manual_seed(0)
    a, drafts, steps = 0.7, 4, 3000
    accepted = (torch.rand(steps, 16, drafts) < a).int().cumprod(2).sum(2, dtype=torch.int32).to(backend.device)
    rate, drafted = torch.full((16,), 0.1, device=backend.device), ints([drafts] * 16, backend.device)
    trail = []
    for step in range(steps):
        backend.adapt_draft_length(rate, drafted, accepted[step], decay=0.98)
        if step >= 300:
            trail.append(rate.clone())
    assert torch.stack(trail).mean().item() == pytest.approx(a, abs=0.01)


# arguments, tracing


def _advance_arguments(device="cpu"):
    history, tokens = longs([[1, 2, 0, 0]] * 2), longs([[5, -1], [6, 7]])
    finished = torch.zeros(2, dtype=torch.bool)
    arguments = history, ints([2, 2]), finished, tokens, ints([0, 1]), longs([7]), ints([4, 4])
    return tuple(x.to(device) for x in arguments)


@without_reference
def test_bad_arguments(backend):
    history, lengths, finished, *rest = _advance_arguments(backend.device)
    with pytest.raises(ValueError, match=r"^finished: expected dtype bool, got int32"):
        backend.advance(history, lengths, lengths, *rest)
    with pytest.raises(ValueError, match=r"^lengths: expected shape \[2\], got \[1\]"):
        backend.advance(history, lengths[:1], finished, *rest)
    with pytest.raises(ValueError, match=r"^history: expected a contiguous tensor"):
        backend.advance(history[:, :3], lengths, finished, *rest)
    rate, none = torch.zeros(2, device=backend.device), ints([0, 0], backend.device)
    adapt = backend.adapt_draft_length
    with pytest.raises(ValueError, match=r"^rate: expected dtype float32, got float64"):
        adapt(rate.double(), none, none)
    with pytest.raises(ValueError, match=r"^decay: expected 0 to 1, got 1.5"):
        adapt(rate, none, none, decay=1.5)
    with pytest.raises(ValueError, match=r"^draft_cost: expected 0 or more, got nan"):
        adapt(rate, none, none, draft_cost=float("nan"))
    with pytest.raises(ValueError, match=r"^max_draft: expected 4 to 2147483647, got 3"):
        adapt(rate, none, none, min_draft=4, max_draft=3)


def test_opcheck_and_compile():
    torch.library.opcheck(torch.ops.specdec.advance, _advance_arguments())
    torch.library.opcheck(torch.ops.specdec.adapt_draft_length, (torch.ones(2), ints([4, 4]), ints([1, 2])))

    def step(rate, history, lengths, finished, tokens, num_accepted, eos_ids, max_lens):
        root = specdec_ops.advance(history, lengths, finished, tokens, num_accepted, eos_ids, max_lens)
        return root, specdec_ops.adapt_draft_length(rate, torch.full_like(lengths, 2), num_accepted)

    eager, traced = ([torch.full((2,), 0.5), *_advance_arguments()] for _ in range(2))
    expected = step(*eager)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")(*traced)
    assert all(torch.equal(a, b) for a, b in zip((*expected, *eager), (*compiled, *traced), strict=True))
    assert eager[2].tolist() == [3, 4] and eager[0][0] != 0.5
