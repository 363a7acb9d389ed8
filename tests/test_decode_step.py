"""One step is device work only, can be captured, and leaves the caches as a fresh prefill would."""

import functools
from collections import deque

import pytest
import torch
from host_guard import HostRead, no_host_reads
from tiny_models import greedy, make_model, random_prompts, save_medusa_heads, similar_model

from specdec_ops.config import DecoderConfig, SamplingParams
from specdec_ops.decode import SpeculativeDecoder
from specdec_ops.drafters import DraftModel, DraftTree, MedusaHeads, PromptLookup

DRAFTERS = ["none", "lookup", "chain", "tree", "medusa"]


def make_decoder(name: str, tmp_path, **options) -> SpeculativeDecoder:
    model = make_model()
    if name == "medusa":
        save_medusa_heads(tmp_path / "heads.safetensors", model, random_prompts([40, 40]))
    drafter = {
        "none": lambda: None,
        "lookup": lambda: PromptLookup(3),
        "chain": lambda: DraftModel(similar_model(model), 3),
        "tree": lambda: DraftTree(similar_model(model), 6, topk=2, depth=3),
        "medusa": lambda: MedusaHeads(tmp_path / "heads.safetensors", 5),
    }[name]()
    return SpeculativeDecoder(model, drafter, DecoderConfig(max_num_seqs=3, max_model_len=64, **options))


def admit(decoder: SpeculativeDecoder, **params) -> None:
    """Two requests, of different parameters, in three slots."""
    options = [SamplingParams(temperature=0, **params), SamplingParams(temperature=0.9, top_p=0.9, seed=5, **params)]
    pairs = zip(random_prompts([7, 12]), options, strict=True)
    decoder._admit(deque(decoder._request(i, prompt, option) for i, (prompt, option) in enumerate(pairs)))


@pytest.mark.parametrize("name", DRAFTERS)
@torch.no_grad()
def test_a_step_reads_nothing_on_the_host(name, tmp_path):
    decoder = make_decoder(name, tmp_path, adaptive=name in ("lookup", "chain"))
    admit(decoder, max_tokens=30)
    with no_host_reads():
        for _ in range(3):
            before = decoder.state.lengths.clone()
            report = decoder.step()
    assert (report.lengths > before).tolist() == [True, True, False]


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.sum().item(),
        lambda x: x.tolist(),
        lambda x: x.cpu(),
        lambda x: x.numpy(),
        lambda x: bool(x.any()),
        lambda x: int(x[0]),
        lambda x: [1, 2, 3][x[0]],
        lambda x: 1 if (x > 0).all() else 0,
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: torch.equal(x, x),
        lambda x: 1 in x,
        lambda x: x.to("cpu"),
        lambda x: x.to(device="cpu"),
        lambda x: x.clone().__setitem__(x > 0, x),
        lambda x: x.clone().index_put_((x > 0,), x),
        lambda x: x.index_put((x > 0,), x),
        lambda x: x.repeat_interleave(x),
        lambda x: torch.repeat_interleave(x),
        lambda x: x.bincount(),
        lambda x: x.unique(),
        lambda x: x[None].unique(dim=1),
        lambda x: x.unique_consecutive(),
        lambda x: x[None].unique_consecutive(dim=1),
        lambda x: torch.allclose(x, x),
        lambda x: torch.tensor([x[0]]),
        lambda x: torch.as_tensor([[1, x[0]]]),
        lambda x: x.new_tensor([x[0]]),
        lambda x: torch.full((2,), x[0]),
        lambda x: torch.arange(x[0]),
    ],
)
def test_the_guard_fires(read):
    x = torch.tensor([1, 2])
    read(x)
    with no_host_reads(), pytest.raises(HostRead):
        read(x)


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x.to(torch.float32).to(x.device).to(x),
        lambda x: x.clone().__setitem__(x > 1, 0),
        lambda x: x.clone().index_put_((x - 1,), x),
        lambda x: x[x - 1],
        lambda x: x.repeat_interleave(2),
        lambda x: x.repeat_interleave(x, output_size=3),
        lambda x: torch.tensor([[1, 2], [3, 4]]),
        lambda x: torch.isclose(x, x),
    ],
)
def test_the_guard_lets_device_work_pass(work):
    x = torch.tensor([1, 2])
    with no_host_reads():
        work(x)


@pytest.mark.parametrize("name", DRAFTERS)
@torch.no_grad()
def test_a_step_is_one_graph(name, tmp_path):
    torch.compiler.reset()  # steps that earlier tests compiled count against torch's limit
    eager, captured = make_decoder(name, tmp_path), make_decoder(name, tmp_path)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    step = torch.compile(captured.step, fullgraph=True, dynamic=False, backend=backend)
    for decoder in (eager, captured):
        admit(decoder, max_tokens=30)
    for _ in range(5):  # lengths, tables and trees change
        expected, actual = eager.step(), step()
        assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))
    assert torch.equal(captured.state.history, eager.state.history)
    assert len(graphs) == 1


def test_compiled_by_a_flag(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    eager, compiled = make_decoder("lookup", tmp_path), make_decoder("lookup", tmp_path, compile=True)
    assert eager.run == eager.step and compiled.run != compiled.step
    prompts, params = random_prompts([7, 12]), SamplingParams(temperature=0.8, seed=1)
    texts = [[r.tokens for r in decoder.generate(prompts, params)] for decoder in (eager, compiled)]
    assert texts[0] == texts[1]


def test_any_number_of_decoders_can_be_compiled(tmp_path, monkeypatch):
    """torch refuses to compile one function more often than its limit says."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    for extra in range(torch._dynamo.config.recompile_limit + 1):
        decoder = make_decoder("lookup", tmp_path, num_blocks=16 + extra, compile=True)
        decoder.generate(random_prompts([7]), SamplingParams(temperature=0.0, max_tokens=2))


@torch.no_grad()
def test_a_finished_request_is_frozen(tmp_path):
    decoder = make_decoder("tree", tmp_path)
    admit(decoder, max_tokens=3)
    for _ in range(3):
        decoder.step()
    state = decoder.state
    assert state.finished.all()
    frozen = state.history.clone(), state.lengths.clone(), state.context_lens.clone()
    decoder.step()
    assert all(
        torch.equal(a, b) for a, b in zip(frozen, (state.history, state.lengths, state.context_lens), strict=True)
    )


def committed(decoder: SpeculativeDecoder, slot: int) -> list[torch.Tensor]:
    n, pool = int(decoder.state.context_lens[slot]), decoder.state.pool
    pages = pool.block_table[slot, : pool.blocks_for(n)].long()
    return [cache[pages].flatten(0, 1)[:n] for cache in decoder.target.cache.tensors]


def test_after_every_step_the_cache_is_that_of_a_fresh_prefill():
    steps, model = 300, make_model("mistral", max_position_embeddings=1024)
    prompts, max_tokens = random_prompts([13, 6]), 3 * steps
    config = DecoderConfig(max_num_seqs=2, max_model_len=32 + max_tokens, block_size=8)
    decoder = SpeculativeDecoder(model, DraftTree(similar_model(model), 5, topk=2, depth=2), config)
    params = [
        SamplingParams(temperature=0, max_tokens=max_tokens),
        SamplingParams(temperature=1.0, top_k=5, seed=3, max_tokens=max_tokens),
    ]
    texts = [list(prompt) for prompt in prompts]
    after_step: list[list[list[torch.Tensor]]] = [[], []]
    stream = decoder.stream(prompts, params)
    for request, tokens, _ in stream:
        texts[request.index] += tokens
        after_step[request.index].append(committed(decoder, request.index))
        assert len(after_step[request.index][-1][0]) == len(texts[request.index]) - 1
        if len(after_step[1]) == steps:
            break
    stream.close()
    assert decoder.metrics.emitted > 1.3 * 2 * steps  # drafts were accepted, so paths were compacted

    # Keys and values of a prefix do not depend on what follows: one prefill of the whole text is that of every step.
    fresh = SpeculativeDecoder(model, None, config)
    fresh._admit(deque(fresh._request(i, text, SamplingParams(max_tokens=1)) for i, text in enumerate(texts)))
    for slot in range(2):
        expected = committed(fresh, slot)
        for step in after_step[slot]:
            for cache, reference in zip(step, expected, strict=True):
                assert torch.allclose(cache, reference[: len(cache)], atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize(
    ("family", "topk", "depth", "num_draft"),
    [("llama", 3, 4, 9), ("mistral", 3, 4, 9), ("llama", 3, 1, 3), ("llama", 1, 4, 4)],
)
@torch.no_grad()
def test_a_draft_tree_is_that_of_forwards_over_whole_texts(family, topk, depth, num_draft):
    """The draft model runs over a level at a time, on the cache; here over every path from its first token on."""
    model = make_model(family)
    drafter = DraftTree(similar_model(model), num_draft, topk, depth)
    decoder = SpeculativeDecoder(model, drafter, DecoderConfig(max_num_seqs=3, max_model_len=64))
    admit(decoder, max_tokens=30)
    reference = similar_model(make_model(family))  # models made from one configuration share its attention

    def children(text: list[int], score: float) -> list[tuple[float, list[int]]]:
        best = reference(torch.tensor([text])).logits[0, -1].log_softmax(-1).topk(topk)
        return [
            (score + logprob, [*text, token]) for logprob, token in zip(*map(torch.Tensor.tolist, best), strict=True)
        ]

    for _ in range(5):
        state, draft = decoder.state, decoder.propose()
        for slot in range(2):
            text = state.history[slot, : state.lengths[slot]].tolist()
            level = children(text, 0.0)
            nodes = list(level)
            for _ in range(depth - 1):
                level = [child for score, path in sorted(level)[-topk:] for child in children(path, score)]
                nodes += level
            paths = [text]
            parents = draft.parents.view(3, -1)[slot, 1:].tolist()
            for token, parent in zip(draft.tokens[slot].tolist(), parents, strict=True):
                paths.append([*paths[parent], token])
            assert sorted(paths[1:]) == sorted(path for _, path in sorted(nodes)[-num_draft:])
        decoder.step()


@pytest.mark.parametrize("name", ["chain", "tree"])
def test_what_earlier_requests_did_without_is_there_for_later_ones(name, tmp_path):
    used, fresh = make_decoder(name, tmp_path), make_decoder(name, tmp_path)
    prompts = random_prompts([7, 12, 1])
    used.generate(prompts, SamplingParams(temperature=0, max_tokens=9))
    (text,) = greedy(make_model(), prompts[2:], 9)
    params = [
        SamplingParams(temperature=0.9, seed=5, max_tokens=20),
        SamplingParams(temperature=1.1, seed=6, max_tokens=20),
        SamplingParams(temperature=0, max_tokens=20, min_tokens=15, stop_token_ids=text[2:4]),
    ]
    expected, actual = ([r.tokens for r in d.generate(prompts, params)] for d in (fresh, used))
    assert actual == expected and len(actual[2]) >= 15
