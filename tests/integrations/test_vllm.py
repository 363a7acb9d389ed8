"""vLLM's layouts, without vLLM: published cases, walks in plain Python, and the plugin on stand-ins for its modules."""

import inspect
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from specdec_ops.integrations import vllm

DATA = Path(__file__).parents[1] / "data"


def published(name: str) -> list[dict]:
    return json.loads((DATA / f"{name}.json").read_text())["cases"]


def metadata(temperature=None, generators=None, min_p=None) -> SimpleNamespace:
    processors = [] if min_p is None else [SimpleNamespace(min_p=min_p[:, None], min_p_count=1)]
    return SimpleNamespace(
        all_greedy=temperature is None,
        temperature=temperature,
        generators=generators or {},
        logitsprocs=SimpleNamespace(argmax_invariant=processors),
    )


def flat(rows: list[list[int]]) -> torch.Tensor:
    return torch.tensor([x for row in rows for x in row], dtype=torch.int32)


def ends(sizes: list[int]) -> torch.Tensor:
    return torch.tensor(sizes).cumsum(0).int()


# ---- the v1 runner


@pytest.mark.parametrize("temperature", [None, 0.0, -1.0])  # older versions mark a greedy request by -1
@pytest.mark.parametrize("case", published("chain_greedy"))
def test_published_greedy_chains(case, temperature):
    drafts, sizes = case["drafts"], [len(d) for d in case["drafts"]]
    logits = torch.zeros(sum(sizes), 10).scatter_(1, flat(case["targets"]).long()[:, None], 5.0)
    out = vllm.rejection_sample(
        flat(drafts),
        sizes,
        max(sizes),
        ends(sizes),
        None,
        logits,
        torch.tensor(case["bonus"])[:, None],
        metadata(None if temperature is None else torch.full((len(drafts),), temperature)),
    )
    assert out.dtype == torch.int32
    assert out.tolist() == [row + [-1] * (max(sizes) + 1 - len(row)) for row in case["output"]]


def dense(rows: list[dict[str, float]], vocab: int) -> torch.Tensor:
    p = torch.zeros(len(rows), vocab)
    for row, entries in zip(p, rows, strict=True):
        for token, value in entries.items():
            row[int(token)] = value
    return p


@pytest.mark.parametrize("form", ["logits", "columns"])
@pytest.mark.parametrize("case", published("chain_sampling"), ids=lambda case: case["name"])
def test_published_rejection_sampling(case, form, monkeypatch):
    uniforms = torch.tensor([[last, *each] for last, each in zip(case["final_uniform"], case["uniforms"], strict=True)])
    monkeypatch.setattr(vllm, "_uniforms", lambda *_: uniforms)
    sizes = [len(d) for d in case["drafts"]]
    p = torch.cat([dense(rows[:-1], case["vocab"]) for rows in case["p"]])
    logits = p.log()
    if form == "columns":  # the three best, best first: the published distributions hold no more; order changes the CDF
        best, columns = p.topk(3)
        columns, order = columns.sort()
        logits = (best.gather(1, order).log(), columns.int())
    out = vllm.rejection_sample(
        flat(case["drafts"]),
        sizes,
        max(sizes),
        ends(sizes),
        torch.cat([dense(rows, case["vocab"]) for rows in case["q"]]),
        logits,
        torch.tensor([row[n] for row, n in zip(case["output"], case["num_accepted"], strict=True)])[:, None],
        metadata(torch.ones(len(sizes))),
    )
    assert out.tolist() == case["output"]


@pytest.mark.parametrize("has_draft_probs", [True, False])
@pytest.mark.parametrize("form", ["logits", "columns"])
def test_chains_are_judged_one_by_one(has_draft_probs, form):
    """Uneven requests, greedy ones among them, against the definition."""
    generator = torch.Generator().manual_seed(1)
    vocab, sizes = 12, [3, 0, 1, 4, 2, 4] * 12
    batch, total = len(sizes), sum(sizes)
    selected = torch.rand(total, vocab, generator=generator).argsort(1)[:, :7].sort(1).values
    logits = torch.full((total, vocab), -torch.inf)
    logits.scatter_(1, selected, torch.randn(total, 7, generator=generator) * 1.5)
    q = 0.6 * logits.softmax(-1) + 0.4 * torch.softmax(torch.randn(total, vocab, generator=generator), -1)
    drafts = q.multinomial(1, generator=generator)[:, 0].int()
    temperature = (torch.arange(batch) % 4 > 0).float() * 0.7
    bonus = torch.randint(vocab, (batch, 1), generator=generator)
    generators = {i: torch.Generator().manual_seed(i) for i in range(batch)}
    out = vllm.rejection_sample(
        drafts,
        sizes,
        4,
        ends(sizes),
        q if has_draft_probs else None,
        logits if form == "logits" else (logits.gather(1, selected), selected.int()),
        bonus,
        metadata(temperature, generators),
    )
    p, first, num_accepted = logits.double().softmax(-1), 0, 0
    for b, size in enumerate(sizes):
        u = torch.rand(size + 1, generator=torch.Generator().manual_seed(b))
        wanted = []
        for i in range(size):
            row, draft = p[first + i], int(drafts[first + i])
            one_hot = torch.nn.functional.one_hot(torch.tensor(draft), vocab)
            proposal = q[first + i].double() if has_draft_probs else one_hot.double()
            if temperature[b] == 0:
                wanted.append(int(row.argmax()))
                if wanted[-1] != draft:
                    break
            elif u[i + 1] * proposal[draft] < row[draft]:
                wanted.append(draft)
            else:
                left = (row - proposal).clamp(min=0)
                wanted.append(int((left.cumsum(0) <= u[0] * left.sum()).sum()))
                break
            num_accepted += 1
        else:
            wanted.append(int(bonus[b]))
        assert out[b].tolist() == wanted + [-1] * (5 - len(wanted))
        first += size
    assert 20 < num_accepted < total - 20


def test_min_p_holds_for_the_drafts_too():
    p = torch.tensor([[0.5, 0.4, 0.1]])
    for min_p, wanted in ((None, 2), (torch.tensor([0.3]), 0)):
        out = vllm.rejection_sample(
            torch.tensor([2], dtype=torch.int32),
            [1],
            1,
            ends([1]),
            torch.tensor([[0.0, 0.0, 1.0]]),
            p.log(),
            torch.tensor([[9]]),
            metadata(torch.ones(1), {0: torch.Generator().manual_seed(13)}, min_p),
        )
        u = torch.rand(2, generator=torch.Generator().manual_seed(13))
        assert (out[0, 0] == 2) == (min_p is None and bool(u[1] < 0.1)) and (wanted == 2 or out[0, 0] != 2)


def test_a_request_with_a_generator_draws_the_same_in_any_batch():
    generator = torch.Generator().manual_seed(2)
    q, p = torch.softmax(torch.randn(2, 5, 20, generator=generator), -1)
    drafts = q.multinomial(1, generator=generator)[:, 0].int()

    def run(rows: slice, sizes: list[int], request: int) -> torch.Tensor:
        return vllm.rejection_sample(
            drafts[rows],
            sizes,
            max(sizes),
            ends(sizes),
            q[rows],
            p[rows].log(),
            torch.zeros(len(sizes), 1, dtype=torch.int64),
            metadata(torch.ones(len(sizes)), {request: torch.Generator().manual_seed(7)}),
        )[request]

    alone, together = run(slice(0, 2), [2], 0), run(slice(0, 5), [2, 3], 0)
    assert together.tolist() == [*alone.tolist(), -1]


def test_acceptance_at_given_rates_is_refused():
    with pytest.raises(ValueError, match="synthetic_mode: expected False"):
        vllm.rejection_sample(flat([[1]]), [1], 1, ends([1]), None, torch.zeros(1, 4), torch.zeros(1, 1), None, True)


def test_expand_batch_to_tokens():
    x, sizes = torch.tensor([0.5, 0.0, 2.0]), ends([2, 0, 3])
    assert vllm.expand_batch_to_tokens(x, sizes, 5).tolist() == [0.5, 0.5, 2.0, 2.0, 2.0]
    assert vllm.expand_batch_to_tokens(x.int(), ends([1, 2, 1]), 4, replace_from=0, replace_to=1).tolist() == [
        1,
        1,
        1,
        2,
    ]
    assert vllm.expand_batch_to_tokens(torch.tensor([3, 4]), ends([1, 1]), 2).dtype == torch.int64


@pytest.mark.parametrize("has_draft_probs", [True, False])
def test_recovered_tokens_follow_what_is_left(has_draft_probs):
    requests = 20000
    p = torch.tensor([0.4, 0.3, 0.2, 0.1])
    q = torch.tensor([0.1, 0.6, 0.1, 0.2])
    tokens = vllm.sample_recovered_tokens(
        1,
        [1] * requests,
        ends([1] * requests),
        torch.ones(requests, 1, dtype=torch.int32),  # vLLM's own tests pass a column
        q.expand(requests, 4) if has_draft_probs else None,
        p.expand(requests, 4),
        metadata(torch.ones(1)),
        torch.device("cpu"),
    )
    wanted = torch.tensor([0.3, 0, 0.1, 0]) / 0.4 if has_draft_probs else torch.tensor([0.4, 0, 0.2, 0.1]) / 0.7
    assert tokens.shape == (requests, 1) and tokens.dtype == torch.int32
    torch.testing.assert_close(tokens[:, 0].bincount(minlength=4) / requests, wanted, atol=0.025, rtol=0)


# ---- the v2 runner


@pytest.mark.parametrize("block", [False, True])
def test_v2_states_and_padding(block):
    generator = torch.Generator().manual_seed(3)
    steps, states, vocab, sizes = 3, 6, 10, [4, 2, 1, 4]
    cu = torch.tensor([0, *sizes]).cumsum(0).int()
    idx = torch.tensor([4, 0, 3, 1], dtype=torch.int32)
    expanded = idx.repeat_interleave(torch.tensor(sizes))
    local = torch.cat([torch.arange(n) for n in sizes]).int()
    logits = torch.randn(sum(sizes), vocab, generator=generator)
    draft_logits = torch.randn(states, steps, vocab - 1, generator=generator)
    tokens = torch.randint(vocab - 1, (sum(sizes),), generator=generator, dtype=torch.int32)
    tokens[3] = -1
    temperature = torch.tensor([0.8, 0.0, 1.0, 1.0, 1.2, 1.0])
    seed = torch.arange(states) + 100
    positions = local.long() + torch.tensor([9, 5, 7, 3]).repeat_interleave(torch.tensor(sizes))

    def run(requests: slice) -> tuple[torch.Tensor, torch.Tensor]:
        rows = slice(int(cu[requests][0]), int(cu[requests.stop]))
        return vllm.rejection_sample_v2(
            logits[rows],
            draft_logits,
            tokens[rows],
            cu[requests.start : requests.stop + 1] - cu[requests][0],
            positions[rows],
            idx[requests],
            expanded[rows],
            local[rows],
            temperature,
            seed,
            steps,
            use_block_verification=block,
        )

    sampled, count = run(slice(0, 4))
    assert sampled.dtype == torch.int64 and count.dtype == torch.int32
    assert ((sampled >= 0).sum(1) == count).all() and (count >= 1).all()
    assert count[0] <= 3 and count[2] == 1
    assert sampled[3, 0] == logits[cu[3]].argmax()  # the greedy one
    for b in range(4):
        alone = run(slice(b, b + 1))
        assert torch.equal(alone[0][0], sampled[b]) and alone[1] == count[b]


@pytest.mark.parametrize(("target", "draft"), [(4, 3), (3, 4)])
@pytest.mark.parametrize("block", [False, True])
def test_v2_follows_the_target_where_vocabularies_differ(target, draft, block):
    """Neither a token that the draft model does not know nor a draft that the target does not know changes it."""
    requests, generator = 20000, torch.Generator().manual_seed(5)
    p = torch.tensor([0.1, 0.2, 0.3, 0.4])[:target]
    q = torch.tensor([0.3, 0.3, 0.1, 0.3])[:draft]
    tokens = torch.zeros(requests, 2, dtype=torch.int64)
    tokens[:, 1] = q.multinomial(requests, replacement=True, generator=generator)
    each, zeros = torch.arange(requests), torch.zeros(requests, dtype=torch.int64)
    sampled, _ = vllm.rejection_sample_v2(
        p.log().expand(2 * requests, target),
        q.log().expand(1, 1, draft),
        tokens.flatten(),
        torch.arange(requests + 1) * 2,
        torch.arange(2 * requests),
        zeros,
        torch.zeros(2 * requests, dtype=torch.int64),
        torch.tensor([0, 1]).repeat(requests),
        torch.ones(1),
        torch.tensor([3]),
        1,
        use_block_verification=block,
    )
    drawn = sampled[each, 0].bincount(minlength=target) / requests
    torch.testing.assert_close(drawn, p / p.sum(), atol=0.02, rtol=0)  # more than five standard deviations


def test_v2_refuses_rates_and_watermarks():
    with pytest.raises(ValueError, match="synthetic_conditional_rates, contexts: expected None"):
        vllm.rejection_sample_v2(*[torch.zeros(1)] * 10, 1, synthetic_conditional_rates=torch.ones(1))


# ---- the plugin


@pytest.fixture
def peers(monkeypatch):
    """Modules shaped as vLLM's and vllm-ascend's are: a sampler's methods look functions up in their own module."""
    source = """
class RejectionSampler(Base):
    def forward(self, *args, **kwargs):
        return rejection_sample(*args, **kwargs)
    _verify = forward
def rejection_sample({arguments}):
    return "theirs"
expand_batch_to_tokens = sample_recovered_tokens = rejection_sample
"""
    v1_arguments = (
        "draft_token_ids, num_draft_tokens, max_spec_len, cu_num_draft_tokens, draft_probs, {logits}, bonus_token_ids, "
        "sampling_metadata, synthetic_mode=False, synthetic_conditional_rates=None, {last}=None"
    )
    v2_arguments = (
        "target_logits, draft_logits, draft_sampled, cu_num_logits, pos, idx_mapping, expanded_idx_mapping, "
        "expanded_local_pos, temperature, seed, num_speculative_steps, synthetic_conditional_rates=None, "
        "use_fp64=False, use_block_verification=False, contexts=None, watermarking=None, "
        "watermarking_skip_mask=None, watermark_key=None"
    )
    modules = {}

    def add(name: str, arguments: str, base: type = object) -> ModuleType:
        for i in range(1, len(name.split("."))):
            parent = ".".join(name.split(".")[:i])
            if parent not in sys.modules:
                monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
        modules[name] = ModuleType(name)
        modules[name].Base = base
        exec(source.format(arguments=arguments), modules[name].__dict__)
        monkeypatch.setitem(sys.modules, name, modules[name])
        return modules[name]

    v1 = add("vllm.v1.sample.rejection_sampler", v1_arguments.format(logits="target_logits", last="use_fp64_gumbel"))
    v2 = add("vllm.v1.worker.gpu.spec_decode.rejection_sampler", v2_arguments)
    ascend = add(
        "vllm_ascend.sample.rejection_sampler",
        v1_arguments.format(logits="target_logits_or_tuple", last="ori_target_logits"),
        v1.RejectionSampler,
    )
    config = ModuleType("vllm_ascend.ascend_config")
    options = SimpleNamespace(enable_entropy_verify=False, enable_block_verify=False)
    config.get_ascend_config = lambda: SimpleNamespace(rejection_sampler_config=options, enable_reduce_sample=False)
    monkeypatch.setitem(sys.modules, config.__name__, config)
    return SimpleNamespace(v1=v1, v2=v2, ascend=ascend, options=options)


V1_CALL = (flat([[2]]), [1], 1, ends([1]), None, torch.tensor([[0.0, 0.0, 9.0]]), torch.tensor([[1]]), metadata())


def test_nothing_happens_unless_asked(peers, monkeypatch):
    monkeypatch.delenv("SPECDEC_VLLM", raising=False)
    vllm.register()
    assert peers.v1.RejectionSampler().forward(*V1_CALL) == "theirs"


def test_the_plugin_swaps_both_runners_and_leaves_rates_to_vllm(peers, monkeypatch):
    monkeypatch.setenv("SPECDEC_VLLM", "1")
    vllm.register()
    vllm.register()
    assert peers.v1.rejection_sample(*V1_CALL) == "theirs"  # until a sampler is built
    sampler = peers.v1.RejectionSampler()
    assert sampler.forward(*V1_CALL).tolist() == [[2, 1]]
    assert sampler.forward(*V1_CALL, synthetic_mode=True) == "theirs"
    assert peers.v1.expand_batch_to_tokens is vllm.expand_batch_to_tokens
    assert peers.v1.RejectionSampler().forward(*V1_CALL, synthetic_mode=True) == "theirs"

    logits, one = torch.tensor([[0.0, 0.0, 9.0], [0.0, 9.0, 0.0]]), torch.tensor([0, 0])
    call = (logits, None, torch.tensor([0, 2]), torch.tensor([0, 2]), one, one[:1], one, torch.tensor([0, 1]))
    rest = (torch.zeros(1), torch.zeros(1, dtype=torch.int64), 1)
    sampled, count = peers.v2.RejectionSampler()._verify(*call, *rest)
    assert sampled.tolist() == [[2, 1]] and count.tolist() == [2]
    assert peers.v2.RejectionSampler()._verify(*call, *rest, contexts=one) == "theirs"
    assert peers.v2.RejectionSampler()._verify(*call, *rest, torch.ones(1)) == "theirs"


@pytest.mark.parametrize("name", ["v1", "ascend"])
def test_calls_with_keywords(peers, monkeypatch, name):
    monkeypatch.setenv("SPECDEC_VLLM", "1")
    vllm.register()
    module = getattr(peers, name)
    names = list(inspect.signature(module.rejection_sample).parameters)
    assert module.RejectionSampler().forward(**dict(zip(names, V1_CALL, strict=False))).tolist() == [[2, 1]]


def test_functions_with_arguments_not_known_here_are_left_alone(peers, monkeypatch):
    """Versions of vLLM before it handed over logits hand over probabilities in their place."""
    monkeypatch.setenv("SPECDEC_VLLM", "1")
    vllm.register()

    def rejection_sample(
        draft_token_ids, num_draft_tokens, max_spec_len, cu, draft_probs, target_probs, bonus, sampling
    ):
        return "theirs"

    peers.v1.rejection_sample = peers.v2.rejection_sample = rejection_sample
    for module in (peers.v1, peers.v2):
        with pytest.warns(UserWarning, match="arguments not known here .*target_probs.*; it is left as it is"):
            assert module.RejectionSampler().forward(*V1_CALL) == "theirs"


def test_the_swap_survives_the_patches_of_vllm_ascend(peers, monkeypatch):
    monkeypatch.setenv("SPECDEC_VLLM", "1")
    vllm.register()
    peers.v1.rejection_sample = peers.ascend.rejection_sample  # what its worker does when it starts
    assert peers.ascend.RejectionSampler().forward(*V1_CALL).tolist() == [[2, 1]]
    peers.options.enable_block_verify = True
    assert peers.ascend.RejectionSampler().forward(*V1_CALL).tolist() == [[2, 1]]


def test_a_lossy_rule_of_vllm_ascend_is_left_alone(peers, monkeypatch):
    monkeypatch.setenv("SPECDEC_VLLM", "1")
    vllm.register()
    peers.options.enable_entropy_verify = True
    assert peers.ascend.RejectionSampler().forward(*V1_CALL) == "theirs"


def test_the_entry_point_is_declared():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert '[project.entry-points."vllm.general_plugins"]\nspecdec = "specdec_ops.integrations.vllm:register"' in text
