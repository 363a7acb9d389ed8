"""FlashInfer's layouts: published cases, dense attention, and frequencies of what is drawn."""

import json
import math
import re
from pathlib import Path

import pytest
import torch
from backends import BACKENDS

from specdec_ops.integrations import flashinfer

DATA = Path(__file__).parents[1] / "data"
SEED = torch.tensor([17, 4, 9, 4]), torch.tensor([3, 1, 2, 1])


def distributions(rows: int, vocab: int, seed: int = 0) -> torch.Tensor:
    return torch.softmax(torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 2, -1)


# ---- sampling


def test_frequencies_follow_the_distribution():
    p = torch.tensor([[0.5, 0.0, 0.25, 0.25], [0.0, 1.0, 0.0, 0.0]])
    indices = torch.arange(2).repeat_interleave(20000)
    for tokens in (
        flashinfer.sampling_from_probs(p, indices, seed=5, offset=0),
        flashinfer.sampling_from_logits(p.log(), indices, generator=torch.Generator().manual_seed(1)),
    ):
        assert tokens.dtype == indices.dtype
        drawn = torch.stack([row.bincount(minlength=4) for row in tokens.view(2, -1)]) / 20000
        torch.testing.assert_close(drawn, p, atol=0.02, rtol=0)  # six standard deviations


def test_a_request_with_a_seed_of_its_own_draws_the_same_in_any_batch():
    p = distributions(4, 50)
    p[3] = p[1]
    together = flashinfer.sampling_from_probs(p, seed=SEED[0], offset=SEED[1])
    assert together.dtype == torch.int32 and together[1] == together[3]
    alone = [flashinfer.sampling_from_probs(p[i : i + 1], seed=SEED[0][i : i + 1], offset=SEED[1][i : i + 1])
             for i in range(4)]  # fmt: skip
    assert torch.equal(together, torch.cat(alone))


def test_one_seed_gives_each_request_its_own_numbers():
    p = torch.full((500, 100), 0.01)
    tokens = flashinfer.sampling_from_probs(p, seed=torch.tensor([3], dtype=torch.uint64), offset=torch.tensor([0]))
    assert len(tokens.unique()) > 80
    assert torch.equal(tokens, flashinfer.sampling_from_probs(p, seed=3, offset=0))
    assert not torch.equal(tokens, flashinfer.sampling_from_probs(p, seed=3, offset=1))
    assert not torch.equal(tokens, flashinfer.sampling_from_probs(p, seed=4, offset=0))


def test_seeds_are_64_bits_of_either_sign():
    p = torch.full((500, 100), 0.01)
    tokens = flashinfer.sampling_from_probs(p, seed=2**64 - 3, offset=2**63)
    assert torch.equal(tokens, flashinfer.sampling_from_probs(p, seed=-3, offset=-(2**63)))
    words = torch.tensor([2**64 - 3], dtype=torch.uint64), torch.tensor([2**63], dtype=torch.uint64)
    assert torch.equal(tokens, flashinfer.sampling_from_probs(p, seed=words[0], offset=words[1]))


@pytest.mark.parametrize(
    ("seed", "offset"),
    [(torch.tensor([1]), 0), (torch.tensor([1, 2]), torch.tensor([0])), (torch.tensor([1.0]), torch.tensor([0]))],
)
def test_seeds_that_do_not_fit(seed, offset):
    with pytest.raises(ValueError, match="seed"):
        flashinfer.sampling_from_probs(distributions(3, 5), seed=seed, offset=offset)


def test_rows_without_a_distribution_are_told():
    p = distributions(3, 8)
    p[1] = torch.nan
    tokens, valid = flashinfer.sampling_from_probs(p, seed=1, offset=0, return_valid=True)
    assert valid.tolist() == [True, False, True] and ((tokens >= 0) & (tokens < 8)).all()
    with pytest.raises(ValueError, match="NaN"):
        flashinfer.sampling_from_logits(p, check_nan=True)


@pytest.mark.parametrize("order", ["top_k_first", "joint"])
def test_top_k_and_top_p(order):
    p = torch.tensor([[0.4, 0.3, 0.2, 0.1]])
    logits, indices = p.log(), torch.zeros(400, dtype=torch.int64)
    # 0.75 takes three of all four, but two of the best three renormalised.
    wanted = {"top_k_first": {0, 1}, "joint": {0, 1, 2}}[order]
    options = {"filter_apply_order": order, "seed": 1, "offset": 0}
    tokens = flashinfer.top_k_top_p_sampling_from_logits(logits, 3, 0.75, indices, **options)
    assert tokens.dtype == torch.int64 and set(tokens.tolist()) == wanted
    assert torch.equal(tokens, flashinfer.top_k_top_p_sampling_from_probs(p, 3, 0.75, indices, **options))
    tokens = flashinfer.top_k_top_p_sampling_from_logits(
        logits.expand(2, 4), torch.tensor([1, 4]), torch.tensor([1.0, 0.3]), filter_apply_order=order
    )
    assert tokens.tolist() == [0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_single_filters(dtype):
    p, indices = torch.tensor([[0.375, 0.3125, 0.25, 0.0625]], dtype=dtype), torch.zeros(400, dtype=torch.int32)
    for function, value, wanted in (
        (flashinfer.top_k_sampling_from_probs, 2, {0, 1}),
        (flashinfer.top_p_sampling_from_probs, 0.7, {0, 1, 2}),
        (flashinfer.min_p_sampling_from_probs, 0.8, {0, 1}),
    ):
        tokens, valid = function(p, value, indices, seed=2, offset=0, return_valid=True)
        assert set(tokens.tolist()) == wanted and valid.all()


@pytest.mark.parametrize("order", ["top_k_first", "joint"])
def test_top_k_and_min_p_are_exact_for_probabilities_whose_logarithms_are_equal(order):
    low = torch.tensor(2e-4)
    high = torch.nextafter(low, torch.tensor(1.0))
    assert low.log() == high.log() and low < high
    p = torch.tensor([[high, low, high, low]])
    indices, options = torch.zeros(400, dtype=torch.int64), {"seed": 1, "offset": 0}
    both = flashinfer.top_k_top_p_sampling_from_probs(p, 2, 0.99, indices, order, **options)
    for tokens in (
        flashinfer.top_k_sampling_from_probs(p, 2, indices, **options),
        flashinfer.min_p_sampling_from_probs(p, 1.0, indices, **options),
        both,
    ):
        assert set(tokens.tolist()) == {0, 2}
    assert flashinfer.top_k_renorm_probs(p, 2).tolist() == [[0.5, 0, 0.5, 0]]


@pytest.mark.parametrize(
    ("name", "filters"),
    [
        ("top_k", {"top_k": 2}),
        ("min_p", {"min_p": 0.5}),
        ("top_k_top_p", {"top_k": 2, "top_p": 0.5}),
        ("top_k_top_p", {"top_k": 2, "top_p": 0.5, "filter_apply_order": "joint"}),
    ],
)
def test_filters_do_not_hide_a_nan(name, filters):
    p = distributions(2, 8)
    p[1, 3] = torch.nan
    function = getattr(flashinfer, f"{name}_sampling_from_probs")
    tokens, valid = function(p, **filters, seed=1, offset=0, return_valid=True)
    assert valid.tolist() == [True, False] and ((tokens >= 0) & (tokens < 8)).all()


@pytest.mark.parametrize("name", ["top_k", "top_p", "min_p"])
@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((), r"Expected a 1D tensor of shape \(batch_size,\) or scalar, got a 0-dimensional tensor"),
        ((2, 8), "Expected a 1D tensor or scalar, got a 2D tensor"),
        ((3,), "Sampling parameter tensor batch size mismatch: expected 2, got 3"),
    ],
)
def test_filters_that_do_not_fit(name, shape, message):
    with pytest.raises(ValueError, match=f"{name}: {message}"):
        getattr(flashinfer, f"{name}_sampling_from_probs")(distributions(2, 8), torch.ones(shape))


def test_an_unknown_order_of_the_filters():
    with pytest.raises(ValueError, match="filter_apply_order: expected top_k_first or joint, got sideways"):
        flashinfer.top_k_top_p_sampling_from_logits(torch.zeros(1, 4), 1, 1.0, filter_apply_order="sideways")


def test_renormalised_distributions():
    p = torch.tensor([[0.1, 0.4, 0.2, 0.3], [0.7, 0.1, 0.1, 0.1]])
    torch.testing.assert_close(
        flashinfer.top_p_renorm_probs(p, 0.6), torch.tensor([[0, 4 / 7, 0, 3 / 7], [1, 0, 0, 0]])
    )
    torch.testing.assert_close(flashinfer.top_p_renorm_probs(p, torch.tensor([1.0, 0.5]))[0], p[0])
    close = torch.softmax(torch.arange(200.0) / 1e3, 0)[None].bfloat16()
    assert int((flashinfer.top_k_renorm_probs(close, 100) > 0).sum()) == int(
        (close >= close.sort().values[0, 100]).sum()
    )
    torch.testing.assert_close(
        flashinfer.top_k_renorm_probs(p, torch.tensor([3, 2])),  # the three 0.1 tie and are kept
        torch.tensor([[0, 4 / 9, 2 / 9, 3 / 9], [0.7, 0.1, 0.1, 0.1]]),
    )


@pytest.mark.parametrize("operators", ["cpu", "sim"])
def test_filters_of_a_large_vocabulary(operators, monkeypatch):
    """More tokens than the NPU's `sample_topk` can return."""
    if isinstance(BACKENDS[operators][0], str):
        pytest.skip(BACKENDS[operators][0])
    monkeypatch.setattr(torch.ops, "specdec", BACKENDS[operators][0])
    p = distributions(2, 32000)
    order = p.sort(1, descending=True).values
    by_k, by_p = p >= order[:, 8999:9000], p >= order.gather(1, (order.cumsum(1) < 0.9).sum(1, keepdim=True))
    assert (by_k.sum(1) == 9000).all() and (by_p != by_k).any(1).all()
    for top_k in (9000, torch.tensor([9000, 9000], dtype=torch.int32)):
        torch.testing.assert_close(flashinfer.top_k_renorm_probs(p, top_k), p * by_k / (p * by_k).sum(1, keepdim=True))
    torch.testing.assert_close(flashinfer.top_p_renorm_probs(p, 0.9), p * by_p / (p * by_p).sum(1, keepdim=True))
    options = {"seed": 1, "offset": 0}
    tokens = flashinfer.top_k_sampling_from_probs(p, 9000, **options).long()[:, None]
    assert by_k.gather(1, tokens).all()
    tokens = flashinfer.top_k_top_p_sampling_from_probs(p, 9000, 0.9, filter_apply_order="joint", **options)
    assert (by_k & by_p).gather(1, tokens.long()[:, None]).all()


def test_filters_that_keep_all_and_rows_without_a_distribution():
    p = distributions(3, 8)
    p[1, 2] = torch.nan
    for top_k in (0, 8, 9, torch.tensor([0, 8, 9])):
        torch.testing.assert_close(flashinfer.top_k_renorm_probs(p, top_k)[::2], p[::2])
    for renormalised in (flashinfer.top_k_renorm_probs(p, 2), flashinfer.top_p_renorm_probs(p, 0.5)):
        assert renormalised.isnan().any(1).tolist() == [False, True, False]
    tail = torch.tensor([[1.0, 1e-20]])  # lost in the sum
    assert torch.equal(flashinfer.top_p_renorm_probs(tail, 1.0), tail)


# ---- chains


def dense(rows: list[dict[str, float]], vocab: int) -> torch.Tensor:
    p = torch.zeros(len(rows), vocab)
    for row, entries in zip(p, rows, strict=True):
        for token, value in entries.items():
            row[int(token)] = value
    return p


@pytest.mark.parametrize(
    "case", json.loads((DATA / "chain_sampling.json").read_text())["cases"], ids=lambda case: case["name"]
)
def test_published_rejection_sampling(case, monkeypatch):
    uniforms = torch.tensor([[last, *each] for last, each in zip(case["final_uniform"], case["uniforms"], strict=True)])
    monkeypatch.setattr(flashinfer, "_uniforms", lambda *_: uniforms)
    drafts = torch.tensor(case["drafts"], dtype=torch.int32)
    p = torch.stack([dense(rows, case["vocab"]) for rows in case["p"]])
    q = torch.stack([dense(rows, case["vocab"]) for rows in case["q"]])
    accepted, emitted = torch.full((len(drafts),), 10, dtype=torch.int32), None
    tokens, accepted_num, emitted_num = flashinfer.chain_speculative_sampling(q, drafts, p, accepted, emitted)
    assert tokens.dtype == torch.int32 and tokens.tolist() == case["output"]
    assert emitted_num.tolist() == case["num_accepted"]
    assert accepted_num is accepted
    for b, total in enumerate(accepted.tolist()):
        alone = [u * q[b, i, x] < p[b, i, x] for i, (u, x) in enumerate(zip(uniforms[b, 1:], drafts[b], strict=True))]
        assert total == 10 + sum(alone)


def test_chains_of_requests_with_their_own_seeds():
    batch, drafts, vocab = 4, 3, 30
    q, p = distributions(batch * drafts, vocab).view(batch, drafts, vocab), distributions(batch * 4, vocab, 1)
    p = p.view(batch, 4, vocab)
    tokens = q.argmax(-1).int()
    out, accepted, emitted = flashinfer.chain_speculative_sampling(q, tokens, p, seed=SEED[0], offset=SEED[1])
    assert (emitted + 1 == (out >= 0).sum(1)).all() and (accepted >= emitted).all()
    for i in range(batch):
        row = slice(i, i + 1)
        alone = flashinfer.chain_speculative_sampling(
            q[row], tokens[row], p[row], seed=SEED[0][row], offset=SEED[1][row]
        )
        assert torch.equal(alone[0], out[row])


def test_a_target_that_agrees_takes_all():
    batch, drafts, vocab = 5, 4, 20
    tokens = torch.randint(vocab, (batch, drafts + 1))
    p = torch.nn.functional.one_hot(tokens, vocab).float()
    out, accepted, emitted = flashinfer.chain_speculative_sampling(
        distributions(batch * drafts, vocab).view(batch, drafts, vocab), tokens[:, :drafts], p
    )
    assert torch.equal(out, tokens.int()) and (accepted == drafts).all() and (emitted == drafts).all()


# ---- attention


def test_merge_state_is_in_base_two():
    generator = torch.Generator().manual_seed(2)
    scores, values = torch.randn(5, 3, 8, generator=generator), torch.randn(5, 3, 8, 4, generator=generator)

    def attend(columns: slice) -> tuple[torch.Tensor, torch.Tensor]:
        s, v = scores[:, :, columns], values[:, :, columns]
        return (s.softmax(-1)[..., None] * v).sum(2), s.logsumexp(-1) / math.log(2)

    merged = flashinfer.merge_state(*attend(slice(0, 3)), *attend(slice(3, 8)))
    torch.testing.assert_close(merged, attend(slice(0, 8)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_merging_many_states_and_in_place(dtype):
    generator = torch.Generator().manual_seed(6)
    v = torch.randn(5, 4, 3, 8, generator=generator).to(dtype)
    s = torch.randn(5, 4, 3, generator=generator) * 3
    s[2, 1:] = -torch.inf
    weights = torch.softmax(s * math.log(2), 1)[..., None]
    merged, lse = flashinfer.merge_states(v, s)
    assert merged.dtype == dtype
    torch.testing.assert_close(merged, (weights * v.float()).sum(1).to(dtype))
    torch.testing.assert_close(lse, (s * math.log(2)).logsumexp(1) / math.log(2))

    mask = torch.tensor([True, False, True, True, False])
    a, b = (v[:, 0].clone(), s[:, 0].clone()), (v[:, 1].contiguous(), s[:, 1].contiguous())
    wanted = flashinfer.merge_state(*a, *b)
    before = a[0].clone(), a[1].clone()
    flashinfer.merge_state_in_place(*a, *b, mask)
    for state, new, old in zip(a, wanted, before, strict=True):
        assert torch.equal(state[mask], new[mask]) and torch.equal(state[~mask], old[~mask])
    flashinfer.merge_state_in_place(*before, *b)
    assert torch.equal(before[0], wanted[0]) and torch.equal(before[1], wanted[1])


def decode_case(queries: int) -> tuple[torch.Tensor, torch.Tensor, tuple]:
    """Queries of three requests, pages of four tokens and the page tables."""
    generator = torch.Generator().manual_seed(7)
    cache = torch.randn(6, 2, 4, 2, 8, generator=generator)
    q = torch.randn(3 * queries, 4, 8, generator=generator)
    tables = torch.tensor([0, 2, 3, 6]), torch.tensor([4, 0, 2, 5, 1, 3]), torch.tensor([3, 4, 1])
    return q, cache, tuple(x.int() for x in tables)


@pytest.mark.parametrize("queries", [1, 3])
def test_decode_is_prefill_of_chains(queries):
    q, cache, tables = decode_case(queries)
    prefill, decode = flashinfer.BatchPrefillWithPagedKVCacheWrapper(), flashinfer.BatchDecodeWithPagedKVCacheWrapper()
    prefill.plan(torch.arange(4).int() * queries, *tables, 4, 2, 8, 4, causal=True)
    decode.plan(*tables, 4, 2, 8, 4, q_len_per_req=queries, q_data_type=torch.float32)
    for actual, expected in zip(
        decode.run(q, cache, return_lse=True), prefill.run(q, cache, return_lse=True), strict=True
    ):
        assert torch.equal(actual, expected)


@pytest.mark.parametrize("window", [-1, 1])
def test_decode_without_a_bound_on_the_right(window):
    q, cache, tables = decode_case(3)
    decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper()
    decode.plan(*tables, 4, 2, 8, 4, q_len_per_req=3, window_right=-1, window_left=window)
    lengths = [7, 4, 9]
    seen = [torch.ones(3, n).triu(-n if window < 0 else n - 3 - window).bool() for n in lengths]
    out = decode.run(q, cache).unflatten(0, (3, 3))
    for b, (mask, n) in enumerate(zip(seen, lengths, strict=True)):
        begin, end = tables[0][b : b + 2].tolist()
        keys, values = cache[tables[1][begin:end].long()].transpose(0, 1).flatten(1, 2)[:, :n].repeat_interleave(2, 2)
        expected = torch.nn.functional.scaled_dot_product_attention(
            *(x.transpose(0, 1) for x in (q.unflatten(0, (3, 3))[b], keys, values)), attn_mask=mask
        )
        torch.testing.assert_close(out[b], expected.transpose(0, 1))
    with pytest.raises(ValueError, match="window_right: expected 0 or -1"):
        decode.plan(*tables, 4, 2, 8, 4, q_len_per_req=3, window_right=1)


def test_the_page_runs_as_it_stands():
    page = (Path(__file__).parents[2] / "docs" / "flashinfer.md").read_text()
    names: dict = {}
    exec(re.search(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[1], names)
    assert names["tokens"].shape == (2, 4) and bool((names["emitted"] <= 3).all())
    assert names["out"].shape == (5, 8, 64) and bool(names["out"].isfinite().all())


def test_arguments_of_the_wrappers_that_ask_for_nothing():
    q, cache, tables = decode_case(1)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        torch.empty(8), "NHD", use_cuda_graph=False, use_tensor_cores=True, backend="fa2"
    )
    types = {"q_data_type": "float32", "kv_data_type": torch.float32, "o_data_type": torch.float32}
    wrapper.plan(*tables, 4, 2, 8, 4, pos_encoding_mode="NONE", **types, disable_split_kv=True)
    out, lse = torch.empty_like(q), torch.empty(3, 4)
    given = wrapper.run(q, cache, out=out, lse=lse, return_lse=True, k_scale=1.0, v_scale=None, enable_pdl=True)
    assert given[0] is out and given[1] is lse
    assert torch.equal(out, wrapper.run(q, cache))
    assert not torch.equal(out, wrapper.run(q, cache, window_left=1))


@pytest.mark.parametrize(
    ("constructor", "plan", "run", "name"),
    [
        ({"use_cuda_graph": True}, {}, {}, "use_cuda_graph: expected False"),
        ({}, {"pos_encoding_mode": "ROPE_LLAMA"}, {}, "pos_encoding_mode: expected NONE"),
        ({}, {"q_data_type": torch.float32, "o_data_type": "float16"}, {}, "o_data_type: expected torch.float32"),
        ({}, {"prefix_len_ptr": torch.ones(3)}, {}, "prefix_len_ptr: expected None.*got a tensor"),
        ({}, {}, {"k_scale": 0.5}, "k_scale: expected 1.0, nothing else is served; got 0.5"),
    ],
)
def test_arguments_of_the_wrappers_that_are_not_served(constructor, plan, run, name):
    q, cache, tables = decode_case(1)
    with pytest.raises(ValueError, match=name):
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(**constructor)
        wrapper.plan(torch.arange(4).int(), *tables, 4, 2, 8, 4, **plan)
        wrapper.run(q, cache, **run)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("mask_kind", ["none", "causal", "bool", "packed"])
@pytest.mark.parametrize("candidates", [[3, 5, 1], [70, 2, 64]])
def test_paged_attention_with_masks(layout, mask_kind, candidates):
    generator = torch.Generator().manual_seed(3)
    page_size, heads, kv_heads, dim = 4, 4, 2, 8
    lengths = [n + extra for n, extra in zip(candidates, [9, 0, 6], strict=True)]  # of keys
    pages = [-(-n // page_size) for n in lengths]
    kv_indptr = torch.tensor([0, *pages]).cumsum(0).int()
    order = torch.randperm(sum(pages) + 3, generator=generator)[: sum(pages)].int()
    cache = torch.randn(sum(pages) + 3, 2, page_size, kv_heads, dim, generator=generator)
    qo_indptr = torch.tensor([0, *candidates]).cumsum(0).int()
    q = torch.randn(sum(candidates), heads, dim, generator=generator)

    masks = []
    for n, length in zip(candidates, lengths, strict=True):
        nodes = torch.rand(n, n, generator=generator) < 0.4
        nodes = {"none": torch.ones(n, n, dtype=torch.bool), "causal": torch.ones(n, n, dtype=torch.bool).tril()}.get(
            mask_kind, nodes | torch.eye(n, dtype=torch.bool)
        )
        masks.append(torch.cat([torch.ones(n, length - n, dtype=torch.bool), nodes], 1))
    packed = []
    for mask in masks:
        bits = torch.nn.functional.pad(mask.flatten(), (0, -mask.numel() % 8)).view(-1, 8)
        packed.append((bits.int() << torch.arange(8)).sum(1).to(torch.uint8))

    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(kv_layout=layout)
    wrapper.plan(
        qo_indptr,
        kv_indptr,
        order,
        torch.tensor([(n - 1) % page_size + 1 for n in lengths], dtype=torch.int32),
        heads,
        kv_heads,
        dim,
        page_size,
        custom_mask=torch.cat([mask.flatten() for mask in masks]) if mask_kind == "bool" else None,
        packed_custom_mask=torch.cat(packed) if mask_kind == "packed" else None,
        causal=mask_kind == "causal",
    )
    given = cache if layout == "NHD" else cache.transpose(2, 3).contiguous()
    out, lse = wrapper.run(q, given, return_lse=True)
    assert torch.equal(wrapper.run(q, tuple(given.unbind(1))), out)
    for b, mask in enumerate(masks):
        rows = slice(int(qo_indptr[b]), int(qo_indptr[b + 1]))
        k, v = (
            x.flatten(0, 1)[: lengths[b]].repeat_interleave(heads // kv_heads, 1)
            for x in cache[order[kv_indptr[b] : kv_indptr[b + 1]].long()].unbind(1)
        )
        scores = torch.einsum("nhd,shd->nhs", q[rows], k) * dim**-0.5
        scores = scores.masked_fill(~mask[:, None], -torch.inf)
        torch.testing.assert_close(out[rows], torch.einsum("nhs,shd->nhd", scores.softmax(-1), v), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(lse[rows], scores.logsumexp(-1) / math.log(2), atol=1e-5, rtol=1e-5)
