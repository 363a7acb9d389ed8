"""Sampled text has the distribution of plain ancestral sampling, and is repeatable."""

import pytest
import scipy.stats
import torch
from tiny_models import make_model, random_prompts, similar_model

from specdec_ops.config import DecoderConfig, SamplingParams
from specdec_ops.decode import SpeculativeDecoder
from specdec_ops.drafters import DraftModel, DraftTree
from specdec_ops.reference.distribution import processed

VOCAB, SLOTS, BATCHES = 7, 2048, 49
PROMPT = [3, 1]
SAMPLING = {"temperature": 0.8, "top_p": 0.95, "min_p": 0.03}
SMALL = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 4}


@pytest.fixture(scope="module")
def model():
    return make_model(vocab_size=VOCAB, **SMALL)


@torch.no_grad()
def exact(model, sampling) -> torch.Tensor:
    """Probability of every text of three tokens, `[VOCAB, VOCAB, VOCAB]`."""
    model.set_attn_implementation("eager")
    joint, texts = torch.ones((), dtype=torch.float64), torch.tensor([PROMPT])
    for depth in range(3):
        rows = model(texts).logits[:, -1]
        step = torch.stack([processed(row, **sampling) for row in rows])
        joint = joint[..., None] * step.view(*[VOCAB] * (depth + 1))
        texts = torch.cat([texts.repeat_interleave(VOCAB, 0), torch.arange(VOCAB).repeat(len(texts))[:, None]], 1)
    return joint


def sampled(decoder, sampling) -> torch.Tensor:
    """How often each text came out, over requests that differ only in their seeds."""
    counts = torch.zeros(VOCAB**3, dtype=torch.int64)
    for batch in range(BATCHES):
        params = [SamplingParams(**sampling, max_tokens=3, seed=batch * SLOTS + i) for i in range(SLOTS)]
        texts = torch.tensor([request.tokens for request in decoder.generate([PROMPT] * SLOTS, params)])
        counts += (texts @ torch.tensor([VOCAB**2, VOCAB, 1])).bincount(minlength=VOCAB**3)
    return counts.view(VOCAB, VOCAB, VOCAB)


def p_value(counts: torch.Tensor, joint: torch.Tensor) -> float:
    """Of a chi-square test; cells with few expected counts are put together."""
    expected = joint.flatten() * counts.sum()
    common = expected >= 10
    observed = counts.flatten().double()
    assert observed[expected == 0].sum() == 0, "a text of probability 0 came out"
    groups = [torch.cat([x[common], x[~common].sum()[None]]) for x in (observed, expected)]
    groups = [x[groups[1] > 0] for x in groups]
    return float(scipy.stats.chisquare(*groups).pvalue)


@pytest.mark.parametrize("name", ["chain", "tree"])
def test_joint_distribution_of_the_first_three_tokens(model, name):
    draft = similar_model(model, noise=0.5)
    drafter = {
        "chain": lambda: DraftModel(draft, 2, temperature=1.1),
        "tree": lambda: DraftTree(draft, 5, topk=3, depth=2),
    }[name]()
    config = DecoderConfig(max_num_seqs=SLOTS, max_model_len=8, block_size=8)
    decoder = SpeculativeDecoder(model, drafter, config)
    counts = sampled(decoder, SAMPLING)
    assert counts.sum() >= 100_000
    assert p_value(counts, exact(model, SAMPLING)) > 1e-3
    # The test can tell: a slightly different temperature is found out.
    assert p_value(counts, exact(model, {**SAMPLING, "temperature": 0.85, "top_p": 1.0, "min_p": 0.0})) < 1e-6
    assert 0.2 < decoder.metrics.acceptance[0] < 0.95  # accepting and rejecting both took part


def test_same_seed_same_text_whatever_the_batch_around_it():
    model = make_model()
    draft = similar_model(model)
    prompts = random_prompts([5, 9, 3, 14, 8, 2])
    params = [SamplingParams(temperature=0.9, top_p=0.95, seed=100 + i, max_tokens=8 + 3 * i) for i in range(6)]

    def texts(order, slots, drafter):
        decoder = SpeculativeDecoder(model, drafter, DecoderConfig(max_num_seqs=slots, max_model_len=64))
        requests = decoder.generate([prompts[i] for i in order], [params[i] for i in order])
        return {i: request.tokens for i, request in zip(order, requests, strict=True)}

    for drafter in (DraftModel(draft, 3), DraftTree(draft, 6, topk=2, depth=3)):
        together = texts(range(6), 6, drafter)
        assert together == texts([4, 2, 0, 5, 3, 1], 2, drafter)
        assert together[3] == texts([3], 1, drafter)[3]


def test_seeds_differ():
    decoder = SpeculativeDecoder(make_model(), None, DecoderConfig(max_num_seqs=4, max_model_len=32))

    def texts(seeds):
        params = [SamplingParams(seed=seed, max_tokens=12) for seed in seeds]
        return [request.tokens for request in decoder.generate([[1, 2, 3]] * 4, params)]

    same = texts([7, 7, 7, 7])
    assert all(text == same[0] for text in same)
    different = texts([7, 8, 9, -1])
    assert different[0] == same[0] and len(set(map(tuple, different))) == 4
    assert texts([None] * 4) != texts([None] * 4)


def test_logprobs_are_those_of_the_processed_distribution():
    model = make_model()
    (prompt,) = random_prompts([6])
    sampling = {"temperature": 0.7, "top_k": 8}
    decoder = SpeculativeDecoder(
        model, DraftModel(similar_model(model), 3), DecoderConfig(max_num_seqs=2, max_model_len=32)
    )
    params = [SamplingParams(**sampling, seed=2, max_tokens=12, logprobs=True), SamplingParams(seed=2, max_tokens=12)]
    asked, not_asked = decoder.generate([prompt] * 2, params)
    assert not_asked.logprobs == []
    model.set_attn_implementation("eager")
    with torch.no_grad():
        rows = model(torch.tensor([prompt + asked.tokens])).logits[0, len(prompt) - 1 : -1]
    expected = [processed(row, **sampling)[token].log() for row, token in zip(rows, asked.tokens, strict=True)]
    torch.testing.assert_close(torch.tensor(asked.logprobs), torch.stack(expected).float(), atol=1e-4, rtol=1e-4)
