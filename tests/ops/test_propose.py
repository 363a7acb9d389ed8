import pytest
import torch
from backends import without_reference
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import specdec_ops
import specdec_ops.reference as reference

SETTINGS = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def propose(backend, histories: list[list[int]], **limits: int) -> tuple[list, list]:
    width = max(map(len, histories))
    # Tokens past the length must not be seen: they would continue every match.
    rows = [tokens + [7] * (width - len(tokens)) for tokens in histories]
    history = torch.tensor(rows, dtype=torch.int64, device=backend.device)
    lengths = torch.tensor([len(tokens) for tokens in histories], dtype=torch.int32, device=backend.device)
    tokens, num_found = backend.ngram_propose(history, lengths, **limits)
    return tokens.tolist(), num_found.tolist()


def test_the_longest_then_the_earliest(backend):
    histories = [
        [1, 2, 3, 4, 2, 3, 5, 1, 2, 3],  # 1 2 3 stands at the start; 2 3 also later
        [2, 3, 8, 9, 2, 3, 5, 6, 2, 3],  # 2 3 twice before: the earliest
        [4, 4, 4, 4],  # the occurrence overlaps the final one
        [1, 2, 3],  # nothing is repeated
        [5, 6, 5],  # one token follows the match, and the final one itself
    ]
    tokens, num_found = propose(backend, histories, min_n=1, max_n=3, num_draft=4)
    assert tokens == [[4, 2, 3, 5], [8, 9, 2, 3], [4, -1, -1, -1], [-1] * 4, [6, 5, -1, -1]]
    assert num_found == [4, 4, 1, 0, 2]


def test_an_ngram_shorter_than_asked_for_is_no_match(backend):
    assert propose(backend, [[1, 2, 9, 2]], min_n=2, max_n=4, num_draft=2) == ([[-1, -1]], [0])
    assert propose(backend, [[1, 2, 9, 2]], min_n=1, max_n=4, num_draft=2) == ([[9, 2]], [2])


@given(st.data())
@SETTINGS
def test_equals_the_reference(backend, data):
    batch, capacity = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 40))
    ids = st.integers(0, data.draw(st.integers(0, 3)))  # few tokens: many repeats, overlaps and borders
    rows = data.draw(st.lists(ids, min_size=batch * capacity, max_size=batch * capacity))
    history = torch.tensor(rows, dtype=torch.int64).reshape(batch, capacity)
    length = st.integers(-2, capacity + 2) | st.just(capacity)
    lengths = torch.tensor(data.draw(st.lists(length, min_size=batch, max_size=batch)), dtype=torch.int32)
    min_n = data.draw(st.integers(1, 5))
    limits = {"min_n": min_n, "max_n": data.draw(st.integers(min_n, 9)), "num_draft": data.draw(st.integers(0, 6))}
    actual = backend.ngram_propose(history.to(backend.device), lengths.to(backend.device), **limits)
    for a, b in zip(actual, reference.ngram_propose(history, lengths, **limits), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.cpu(), b)


def test_the_batch_and_the_threads_do_not_matter():
    torch.manual_seed(0)
    history = torch.randint(0, 40, (9, 20_000))
    lengths = torch.randint(15_000, 20_000, (9,), dtype=torch.int32)
    limits = {"min_n": 1, "max_n": 2**31 - 1, "num_draft": 8}
    tokens, num_found = specdec_ops.ngram_propose(history, lengths, **limits)
    assert (num_found == 8).all()
    for b in range(9):
        alone = specdec_ops.ngram_propose(history[b : b + 1], lengths[b : b + 1], **limits)
        assert torch.equal(alone[0][0], tokens[b])


@without_reference
def test_bad_arguments(backend):
    history = torch.zeros(2, 4, dtype=torch.int64, device=backend.device)
    lengths = torch.zeros(2, dtype=torch.int32, device=backend.device)
    limits = {"min_n": 1, "max_n": 3, "num_draft": 2}
    with pytest.raises(ValueError, match=r"^history: expected dtype int64, got int32"):
        backend.ngram_propose(history.int(), lengths, **limits)
    with pytest.raises(ValueError, match=r"^lengths: expected shape \[2\], got \[1\]"):
        backend.ngram_propose(history, lengths[:1], **limits)
    with pytest.raises(ValueError, match=r"^min_n: expected 1 to 2147483647, got 0"):
        backend.ngram_propose(history, lengths, **{**limits, "min_n": 0})
    with pytest.raises(ValueError, match=r"^max_n: expected 4 to 2147483647, got 3"):
        backend.ngram_propose(history, lengths, **{**limits, "min_n": 4})
    with pytest.raises(ValueError, match=r"^num_draft: expected 0 to 2147483647, got -1"):
        backend.ngram_propose(history, lengths, **{**limits, "num_draft": -1})


def test_opcheck_and_compile():
    history: Tensor = torch.tensor([[1, 2, 3, 1, 2], [5, 5, 5, 0, 0]])
    lengths, limits = torch.tensor([5, 3], dtype=torch.int32), {"min_n": 1, "max_n": 3, "num_draft": 4}
    torch.library.opcheck(torch.ops.specdec.ngram_propose, (history, lengths), limits)
    compiled = torch.compile(specdec_ops.ngram_propose, fullgraph=True, backend="aot_eager")
    actual, expected = (f(history, lengths, **limits) for f in (compiled, specdec_ops.ngram_propose))
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))
    assert expected[1].tolist() == [3, 1]
