"""Greedy decoding gives the tokens that transformers' own `generate` gives, whoever drafts."""

import itertools

import pytest
import torch
from tiny_models import CONFIGS, WINDOW, greedy, make_model, random_prompts, save_medusa_heads, similar_model
from transformers import AutoModelForCausalLM, GPT2Config

from specdec_ops.config import DecoderConfig, SamplingParams
from specdec_ops.decode import SpeculativeDecoder
from specdec_ops.drafters import Draft, Drafter, DraftModel, DraftTree, MedusaHeads, PromptLookup

LENGTHS = [5, 1, 20, 2, 11, 3, 16]
MAX_TOKENS = 2 * WINDOW + 6
DRAFTERS = ["none", "lookup", "chain", "tree", "medusa", "medusa chain"]


@pytest.fixture(scope="module", params=CONFIGS)
def family(request, tmp_path_factory):
    model = make_model(request.param)
    prompts = random_prompts(LENGTHS)
    texts = greedy(model, prompts, MAX_TOKENS)
    heads = tmp_path_factory.mktemp("medusa") / "heads.safetensors"
    save_medusa_heads(heads, model, [prompt + text for prompt, text in zip(prompts, texts, strict=True)])
    return model, prompts, texts, heads


def make_drafter(name, model, heads):
    return {
        "none": lambda: None,
        "lookup": lambda: PromptLookup(3),
        "chain": lambda: DraftModel(similar_model(model), 3),
        "tree": lambda: DraftTree(similar_model(model), 7, topk=3, depth=3),
        "medusa": lambda: MedusaHeads(heads, 6),
        "medusa chain": lambda: MedusaHeads(heads, choices=[(0,), (0, 0), (0, 0, 0)]),
    }[name]()


class Oracle(Drafter):
    """A drafter of one's own: knows the text, and is wrong in every third place."""

    num_draft = depth = 3

    def __init__(self, text):
        self.text = torch.tensor([*text, 0, 0, 0])

    def propose(self, state):
        index = (state.lengths[:, None] + torch.arange(3)).clamp(max=len(self.text) - 1).long()
        return Draft(torch.where(index % 3 == 0, 0, self.text[index]))


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("slots", [1, 7])
def test_same_tokens_as_transformers(family, name, slots):
    model, prompts, texts, heads = family
    config = DecoderConfig(max_num_seqs=slots, max_model_len=max(LENGTHS) + MAX_TOKENS, block_size=4)
    decoder = SpeculativeDecoder(model, make_drafter(name, model, heads), config)
    rows = slice(2, 3) if slots == 1 else slice(None)
    requests = decoder.generate(prompts[rows], SamplingParams(temperature=0, max_tokens=MAX_TOKENS))
    assert [request.tokens for request in requests] == texts[rows]
    if name in ("chain", "tree", "medusa"):
        assert decoder.metrics.acceptance[0] > 0.1, "too few drafts accepted for this test to tell anything"
    if name in ("chain", "tree"):
        assert decoder.metrics.acceptance[1] > 0.1


@pytest.mark.parametrize("name", ["chain", "tree"])
def test_end_of_sequence_and_length_limit_inside_an_accepted_block(name):
    model = make_model()
    drafter = DraftModel(model, 4) if name == "chain" else DraftTree(model, 8, topk=2, depth=4)
    (prompt,) = random_prompts([9])
    (text,) = greedy(model, [prompt], 14)
    decoder = SpeculativeDecoder(model, drafter, DecoderConfig(max_num_seqs=2, max_model_len=40))
    chunks = [tokens for _, tokens, _ in decoder.stream([prompt], SamplingParams(temperature=0, max_tokens=14))]
    assert [token for chunk in chunks for token in chunk] == text
    ends = list(itertools.accumulate(map(len, chunks)))
    inside = [i for i in range(14) if i + 1 not in ends and i not in ends]
    cut = next(i for i in inside if text[i] not in text[:i])
    params = [
        SamplingParams(temperature=0, max_tokens=14, stop_token_ids=[text[cut]]),
        SamplingParams(temperature=0, max_tokens=cut + 1),
    ]
    stopped, limited = decoder.generate([prompt] * 2, params)
    assert stopped.tokens == limited.tokens == text[: cut + 1]
    assert greedy(model, [prompt], 14, eos_token_id=text[cut]) == [stopped.tokens]
    assert (stopped.finish_reason, limited.finish_reason) == ("stop", "length")


@pytest.mark.parametrize("drafter_class", [Oracle, DraftModel, DraftTree])
def test_drafts_past_the_end_of_a_table_of_positions(drafter_class):
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 61, "n_positions": 24, "initializer_range": 0.3}
    torch.manual_seed(0)
    config = GPT2Config(**sizes, bos_token_id=None, eos_token_id=None)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    (prompt,) = random_prompts([9])
    texts = greedy(model, [prompt], 15)
    drafter = Oracle(prompt + texts[0]) if drafter_class is Oracle else drafter_class(similar_model(model), 4)
    decoder = SpeculativeDecoder(model, drafter, DecoderConfig(max_num_seqs=1, max_model_len=24))
    assert [r.tokens for r in decoder.generate([prompt], SamplingParams(temperature=0, max_tokens=15))] == texts


def test_more_requests_than_slots_and_pages():
    model = make_model()
    prompts = random_prompts(LENGTHS)
    params = [SamplingParams(temperature=0, max_tokens=1 + 3 * i % 11) for i in range(len(prompts))]
    texts = greedy(model, prompts, 11)
    # Pages for about two requests, slots for three.
    config = DecoderConfig(max_num_seqs=3, max_model_len=32, block_size=4, num_blocks=16)
    decoder = SpeculativeDecoder(model, PromptLookup(3), config)
    for _ in range(2):  # nothing leaks
        requests = decoder.generate(prompts, params)
        expected = [text[: param.max_tokens] for text, param in zip(texts, params, strict=True)]
        assert [request.tokens for request in requests] == expected
        assert int(decoder.state.pool.num_free) == decoder.free_blocks == 16


def test_a_closed_stream_gives_everything_back():
    decoder = SpeculativeDecoder(make_model(), None, DecoderConfig(max_num_seqs=2, max_model_len=32))
    stream = decoder.stream(random_prompts([3, 4, 5]), SamplingParams(temperature=0, max_tokens=9))
    next(stream)
    stream.close()
    assert int(decoder.state.pool.num_free) == decoder.state.pool.num_blocks
    assert bool(decoder.state.finished.all())


@pytest.mark.parametrize("slots", [1, 3])
def test_streams_of_one_decoder_run_one_after_the_other(slots):
    model, params = make_model(), SamplingParams(temperature=0, max_tokens=9)
    decoder = SpeculativeDecoder(model, None, DecoderConfig(max_num_seqs=slots, max_model_len=32))
    prompts = random_prompts([3, 4, 5])
    one, other = decoder.stream(prompts[:2], params), decoder.stream(prompts[2:], params)
    texts: list[list[int]] = [[], []]
    for request, tokens, _ in one:  # with one slot, no request is running when the first has ended
        texts[request.index] += tokens
        with pytest.raises(RuntimeError, match="decoding already"):
            next(other)
        other = decoder.stream(prompts[2:], params)
    texts.append([token for chunk in other for token in chunk.tokens])
    assert texts == greedy(model, prompts, 9)


def test_streamed_chunks_add_up():
    model = make_model()
    prompts = random_prompts([4, 9])
    decoder = SpeculativeDecoder(model, DraftModel(model, 3), DecoderConfig(max_num_seqs=2, max_model_len=32))
    texts: list[list[int]] = [[], []]
    for request, tokens, _ in decoder.stream(prompts, SamplingParams(temperature=0, max_tokens=10)):
        assert 1 <= len(tokens) <= 4
        texts[request.index] += tokens
    assert texts == greedy(model, prompts, 10)
    assert decoder.metrics.tokens_per_step > 3 and decoder.metrics.emitted == 20


def test_min_tokens_holds_back_every_stop_token():
    model = make_model()
    (prompt,) = random_prompts([9])
    (text,) = greedy(model, [prompt], 12)
    stops = text[2:4]
    expected = greedy(model, [prompt], 12, eos_token_id=stops, min_new_tokens=7)
    for drafter in (None, DraftModel(similar_model(model), 3), DraftTree(similar_model(model), 6, topk=2, depth=3)):
        decoder = SpeculativeDecoder(model, drafter, DecoderConfig(max_num_seqs=1, max_model_len=32))
        params = SamplingParams(temperature=0, max_tokens=12, min_tokens=7, stop_token_ids=stops)
        assert decoder.generate([prompt], params)[0].tokens == expected[0]


@pytest.mark.parametrize("min_tokens", [0, 5])
def test_stop_ids_that_are_no_tokens_change_nothing(min_tokens):
    model = make_model()
    (prompt,) = random_prompts([9])
    (text,) = greedy(model, [prompt], 8)
    decoder = SpeculativeDecoder(model, PromptLookup(3), DecoderConfig(max_num_seqs=1, max_model_len=32))
    params = SamplingParams(
        temperature=0, max_tokens=8, min_tokens=min_tokens, stop_token_ids=[61, -1, 2**40, *range(1000, 1016)]
    )
    assert decoder.generate([prompt], params)[0].tokens == text


@pytest.mark.parametrize("vocab_size", [50, 80])
@pytest.mark.parametrize("drafter_class", [DraftModel, DraftTree])
def test_vocabularies_padded_to_different_sizes(vocab_size, drafter_class):
    model = make_model()
    prompts = random_prompts(LENGTHS, vocab_size=50)
    draft = make_model(vocab_size=vocab_size, seed=3)
    decoder = SpeculativeDecoder(model, drafter_class(draft, 3), DecoderConfig(max_num_seqs=7, max_model_len=40))
    requests = decoder.generate(prompts, SamplingParams(temperature=0, max_tokens=8))
    assert [request.tokens for request in requests] == greedy(model, prompts, 8)


def test_adaptive_draft_length():
    model = make_model()
    prompts = random_prompts([9, 9])
    texts = greedy(model, prompts, 30)
    config = DecoderConfig(max_num_seqs=2, max_model_len=64, adaptive=True)
    poor = SpeculativeDecoder(model, DraftModel(make_model(seed=9), 4), config)
    good = SpeculativeDecoder(model, DraftModel(model, 4), config)
    for decoder in (poor, good):
        requests = decoder.generate(prompts, SamplingParams(temperature=0, max_tokens=30))
        assert [request.tokens for request in requests] == texts
    assert poor.metrics.drafted_at[3] < 0.7 * poor.metrics.drafted_at[0]
    assert good.metrics.acceptance[3] == 1.0


def test_a_drafter_of_ones_own():
    model = make_model()
    (prompt,) = random_prompts([6])
    (text,) = greedy(model, [prompt], 20)
    decoder = SpeculativeDecoder(model, Oracle(prompt + text), DecoderConfig(max_num_seqs=1, max_model_len=32))
    assert decoder.generate([prompt], SamplingParams(temperature=0, max_tokens=20))[0].tokens == text
    assert decoder.metrics.tokens_per_step > 1.5


class NoDrafts(Drafter):
    num_draft = depth = 3

    def propose(self, state):
        return Draft(torch.full((len(state.lengths), 3), state.vocab_size + 5))


def test_what_is_no_token_does_not_count_as_drafted():
    model = make_model()
    (prompt,) = random_prompts([6])
    config = DecoderConfig(max_num_seqs=1, max_model_len=32, adaptive=True)
    decoder = SpeculativeDecoder(model, NoDrafts(), config)
    rate = decoder.state.draft_rate.clone()
    texts = [request.tokens for request in decoder.generate([prompt], SamplingParams(temperature=0, max_tokens=8))]
    assert texts == greedy(model, [prompt], 8)
    assert torch.equal(decoder.state.draft_rate, rate) and sum(decoder.metrics.drafted_at) == 0


@pytest.mark.parametrize("drafter_class", [DraftModel, DraftTree])
def test_decoders_that_run_together_need_a_drafter_each(drafter_class):
    model = make_model()
    prompts = random_prompts([6])
    drafter = drafter_class(similar_model(model), 3)
    config = DecoderConfig(max_num_seqs=1, max_model_len=32)
    one, other = (SpeculativeDecoder(model, drafter, config) for _ in range(2))
    params = SamplingParams(temperature=0, max_tokens=20)
    stream = one.stream(prompts, params)
    next(stream)
    other.generate(prompts, params)
    with pytest.raises(RuntimeError, match="this drafter serves another decoder by now"):
        next(stream)
    assert [request.tokens for request in one.generate(prompts, params)] == greedy(model, prompts, 20)
