"""Kernels as triton-ascend lowers them, run as native code and compared with the references (layer C; see `native.py`).

The interpreter runs a kernel's Python; this runs what the compiler makes of it, up to linalg.
"""

import pytest

pytest.importorskip("ascendnpuir", reason="needs the environment of tests/triton_backend/setup_envs.sh")

import torch
from ops.verification import OPERATORS, assert_agrees, random_case

import specdec_ops.reference as reference
import specdec_ops.triton as operators


def test_philox_uniform():
    seeds, offsets = torch.tensor([0, 1, -1, 1 << 40]), torch.tensor([0, 7, (1 << 40) + 3, -5])
    for n, stream in ((6, 3), (129, 0xFFFFFFFF)):
        expected = reference.philox_uniform(seeds, offsets, n, stream)
        assert torch.equal(operators.philox_uniform(seeds, offsets, n, stream), expected)


def _ints(*values):
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_kv_cache(dtype):
    k = (torch.arange(5 * 2 * 24).reshape(5, 2, 24) % 100).to(dtype)
    table, cu = _ints(5, 0, 3, 1, -1, 2).reshape(2, 3), _ints(0, 3, 5)
    caches = [torch.zeros(6, 4, 2, 24, dtype=dtype) for _ in range(2)]
    lens = [_ints(2, 3), _ints(2, 3)]
    for library, cache, context in zip((reference, operators), caches, lens, strict=True):
        library.kv_append(k, k[..., :8], cache, cache[..., :8], table, context, cu)
        library.kv_rollback([cache], table, context, _ints(1, 1), _ints(0, 2, 0, 1).reshape(2, 2))
    assert torch.equal(*caches) and torch.equal(*lens) and caches[0].any()


def test_page_pool():
    results = []
    for library in (reference, operators):
        table, free, num_free = _ints(*[-1] * 8).reshape(2, 4), _ints(4, 3, 2, 1, 0), _ints(5)
        status = library.blocks_reserve(table, free, num_free, _ints(0, 5), _ints(9, 99), 4)
        library.blocks_release(table, free, num_free, _ints(4, 0), 4)
        results.append((table, free, num_free, status))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_tree_and_step():
    parents, cu = _ints(-1, 0, 0, 1, 2, -1, 0, 0, -1), _ints(0, 5, 8)
    for a, b in zip(reference.tree_mask(parents, cu, 8), operators.tree_mask(parents, cu, 8), strict=True):
        assert torch.equal(a, b)
    tokens, scores = torch.arange(16).reshape(2, 8), -torch.rand(2, 8, generator=torch.Generator().manual_seed(0))
    above = _ints(*[max(i % 8 // 2, 0) for i in range(16)]).reshape(2, 8)
    expected = reference.tree_select(tokens, scores, above, 4)
    for a, b in zip(expected, operators.tree_select(tokens, scores, above, 4), strict=True):
        assert torch.equal(a, b)
    history = torch.randint(0, 3, (3, 40), generator=torch.Generator().manual_seed(0))
    proposal = {"min_n": 1, "max_n": 3, "num_draft": 4}
    expected = reference.ngram_propose(history, _ints(40, 17, 1), **proposal)
    for a, b in zip(expected, operators.ngram_propose(history, _ints(40, 17, 1), **proposal), strict=True):
        assert torch.equal(a, b)
    rates = [torch.tensor([0.5, 0.9, float("nan")]) for _ in range(2)]
    lengths = [
        library.adapt_draft_length(rate, _ints(4, 4, 0), _ints(1, 4, 0))
        for library, rate in zip((reference, operators), rates, strict=True)
    ]
    assert torch.equal(*lengths) and torch.allclose(*rates, equal_nan=True)


def _logits(rows, vocab):
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(1)) * 3


def test_sample():
    logits = _logits(4, 700)
    logits[2, 5] = float("nan")
    filters = {
        "temperature": torch.tensor([1.0, 0.0, 0.7, 1.5]),
        "top_k": _ints(0, 5, 0, 40),
        "top_p": torch.tensor([0.8, 1.0, 1.0, 0.9]),
        "min_p": torch.tensor([0.0, 0.0, 0.1, 0.05]),
    }
    uniforms = torch.tensor([0.1, 0.5, 0.9, 0.7])
    expected = reference.sample(logits, uniforms, **filters)
    actual = operators.sample(logits, uniforms, **filters)
    assert torch.equal(actual[0], expected[0]) and torch.equal(actual[2], expected[2])
    torch.testing.assert_close(actual[1], expected[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("operator", "rule"), OPERATORS)
def test_verify(operator, rule):
    # Several blocks, the last not full; many requests, for some to get deep, where the weights of a path matter.
    case = random_case(operator, rule, sizes=[5, 1, 0, 9, 2, 7, 4, 4, *[9] * 32], vocab=701)
    roots = case.cu_nodes[:-1]
    case.target_logits[roots[6], 11] = torch.nan
    case.tokens[roots[7] + 2] = -1
    out = assert_agrees(case, operators, "cpu", decided=0.8)
    assert out["num_accepted"].any() and out["status"].tolist() == [0] * 6 + [1] + [0] * 33


@pytest.mark.parametrize(
    ("dtype", "heads", "options"),
    [
        (torch.float32, 4, {}),
        (torch.float16, 4, {}),
        (torch.float32, 2, {}),  # a query head for each KV head
        (torch.float32, 6, {"window": 9, "softcap": 5.0, "sinks": torch.arange(6) / 3}),  # three, in four lanes
    ],
    ids=lambda value: str(list(value)) if isinstance(value, dict) else str(value),
)
def test_tree_attention(dtype, heads, options):
    generator = torch.Generator().manual_seed(3)
    q = torch.randn(8, heads, 32, generator=generator).to(dtype)
    k, v = (torch.randn(8, 16, 2, 32, generator=generator).to(dtype) for _ in range(2))
    table, lens, cu = _ints(5, 0, 3, 1).reshape(2, 2), _ints(13, 0), _ints(0, 5, 8)
    mask, _ = reference.tree_mask(_ints(-1, 0, 0, 1, 2, -1, 0, 0), cu, 8)
    arguments = (q, k, v, table, lens, cu, mask)
    expected = reference.tree_attention(*arguments, scale=0.2, max_nodes=8, **options)
    actual = operators.tree_attention(*arguments, scale=0.2, max_nodes=8, **options)
    torch.testing.assert_close(actual[0].float(), expected[0].float(), rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(actual[1], expected[1], rtol=1e-4, atol=1e-4)
