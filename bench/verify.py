"""verify_chain by rejection sampling, straight from logits, with draft logits.

Peers: vLLM's CPU sampler from logits to tokens, and its two C++ kernels alone; torch, batched and reading the residual
row only; transformers' way, with both softmaxes over every row.
"""

import sys
from typing import Any

import torch
from torch import Tensor

from bench import inputs, peers
from bench.timing import Case, num_sets, operator

AXES = {"dtype": ["float32", "bfloat16"], "batch": [1, 8, 64], "drafts": [4, 8], "vocab": [32000, 128256, 152064]}
QUICK = {"batch": [1, 8], "drafts": [4], "vocab": [32000, 128256]}

TEMPERATURE = 0.9


class Inputs:
    """One step of `batch` requests with `drafts` drafts each, sampled from the draft model's own distribution."""

    def __init__(self, dtype: torch.dtype, batch: int, drafts: int, vocab: int) -> None:
        self.batch, self.drafts, self.vocab = batch, drafts, vocab
        nodes = drafts + 1
        self.target = inputs.target_logits(batch * nodes, vocab)
        self.draft = inputs.draft_logits(self.target).to(dtype)
        self.target = self.target.to(dtype)
        probs = (self.draft.view(batch, nodes, vocab)[:, :drafts].float() / TEMPERATURE).softmax(-1)
        self.draft_probs = probs.view(batch * drafts, vocab)  # what vLLM's drafter hands over
        self.draft_tokens = torch.multinomial(self.draft_probs, 1).view(batch, drafts)
        roots = torch.zeros(batch, 1, dtype=torch.int64)
        self.tokens = torch.cat([roots, self.draft_tokens], 1).view(-1)
        self.cu_nodes = torch.arange(batch + 1, dtype=torch.int32) * nodes
        self.uniforms = torch.rand(batch, nodes)
        self.temperature = torch.full((batch,), TEMPERATURE)
        row = torch.arange(batch * nodes).view(batch, nodes)
        self.draft_rows, self.bonus_rows = row[:, :drafts].reshape(-1), row[:, drafts]
        self.cu_drafts = torch.arange(1, batch + 1) * drafts


def torch_batched(x: Inputs) -> tuple[Tensor, Tensor]:
    """Log-normalisers of all rows, then only the one row a request that the last token is drawn from."""
    nodes = x.drafts + 1
    target, draft = (t.view(x.batch, nodes, x.vocab) for t in (x.target, x.draft))
    temperature = x.temperature[:, None, None]

    def probability(logits: Tensor) -> Tensor:
        scaled = logits[:, : x.drafts].float() / temperature
        token = scaled.gather(2, x.draft_tokens[:, :, None]).squeeze(2)
        return (token - scaled.logsumexp(2)).exp()

    accepted = (x.uniforms[:, 1:] * probability(draft) < probability(target)).cumprod(1).sum(1)
    request = torch.arange(x.batch)
    p = (target[request, accepted].float() / x.temperature[:, None]).softmax(-1)
    q = (draft[request, accepted].float() / x.temperature[:, None]).softmax(-1)
    residual = torch.where((accepted < x.drafts)[:, None], (p - q).clamp_(min=0), p)
    cumulative = residual.cumsum(1)
    last = torch.searchsorted(cumulative, x.uniforms[:, :1] * cumulative[:, -1:], right=True).clamp_(max=x.vocab - 1)
    tokens = torch.full((x.batch, nodes), -1)
    tokens[:, : x.drafts] = torch.where(torch.arange(x.drafts) < accepted[:, None], x.draft_tokens, -1)
    return accepted, tokens.scatter_(1, accepted[:, None], last)


def transformers_like(x: Inputs) -> tuple[Tensor, Tensor]:
    """`_speculative_sampling` of transformers, batched: probabilities of every row, then multinomial."""
    nodes = x.drafts + 1
    temperature = x.temperature[:, None, None]
    p, q = ((t.view(x.batch, nodes, x.vocab).float() / temperature).softmax(-1) for t in (x.target, x.draft))
    index = x.draft_tokens[:, :, None]
    ratio = (p[:, : x.drafts].gather(2, index) / q[:, : x.drafts].gather(2, index)).squeeze(2)
    accepted = (x.uniforms[:, 1:] < ratio).cumprod(1).sum(1)
    request = torch.arange(x.batch)
    p_last, q_last = p[request, accepted], q[request, accepted]
    residual = torch.where((accepted < x.drafts)[:, None], (p_last - q_last).clamp_(min=0), p_last)
    last = torch.multinomial(residual, 1)
    tokens = torch.full((x.batch, nodes), -1)
    tokens[:, : x.drafts] = torch.where(torch.arange(x.drafts) < accepted[:, None], x.draft_tokens, -1)
    return accepted, tokens.scatter_(1, accepted[:, None], last)


class Vllm:
    """The steps of vLLM's `RejectionSampler` and `Sampler` on the CPU, without their Python around."""

    def __init__(self, operators: Any, x: Inputs) -> None:
        self.operators, self.x = operators, x

    def kernels(self, probs: Tensor, bonus: Tensor, uniforms: Tensor, inv_q: Tensor) -> tuple[Tensor, Tensor]:
        x, draft_tokens = self.x, self.x.draft_tokens.view(-1)
        recovered = torch.empty_like(draft_tokens)
        self.operators.sample_recovered_tokens_kernel_impl(
            recovered, x.cu_drafts, draft_tokens, x.draft_probs, probs, inv_q, x.vocab, False
        )
        tokens = torch.full((x.batch, x.drafts + 1), -1)
        greedy = torch.zeros(x.batch, dtype=torch.bool)
        drafted = (x.cu_drafts, draft_tokens, x.draft_probs)
        self.operators.rejection_random_sample_kernel_impl(
            tokens, *drafted, probs, bonus, recovered, uniforms, greedy, x.drafts, x.vocab, False
        )
        return (tokens >= 0).sum(1) - 1, tokens

    def prepare(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """From logits to what the kernels take: softmax, the bonus token, noise."""
        x = self.x
        bonus_logits = x.target[x.bonus_rows].float().div_(x.temperature[:, None])
        bonus = self.operators.fused_gumbel_argmax(bonus_logits, torch.randint(0, 2**31, (x.batch,)))
        # It keeps a copy of the raw logits (for log-probabilities) and scales the other in place.
        logits = x.target[x.draft_rows].float().clone()
        logits.div_(x.temperature.repeat_interleave(x.drafts)[:, None])
        uniforms = torch.rand(x.batch * x.drafts, dtype=torch.float64).float()
        inv_q = torch.empty(x.batch, x.vocab).exponential_().reciprocal()
        return logits.softmax(-1, dtype=torch.float32), bonus, uniforms, inv_q

    def sampler(self) -> tuple[Tensor, Tensor]:
        return self.kernels(*self.prepare())


def case(dtype: str, batch: int, drafts: int, vocab: int) -> Case:
    scalar = getattr(torch, dtype)
    sets = num_sets(2 * batch * (drafts + 1) * vocab * scalar.itemsize)
    steps = [Inputs(scalar, batch, drafts, vocab) for _ in range(sets)]
    runs: dict[str, Any] = {}
    skipped: dict[str, str] = {}

    ours = operator("verify_chain")
    if isinstance(ours, str):
        skipped["ours"] = ours
    else:

        def verify_chain(i: int) -> tuple[Tensor, Tensor]:
            x = steps[i]
            q = {"draft_logits": x.draft, "draft_temperature": x.temperature}
            step = (x.target, x.tokens, x.cu_nodes, x.uniforms)
            tokens, accepted, _, _ = ours(*step, **q, temperature=x.temperature, max_nodes=drafts + 1)
            return accepted, tokens

        runs["ours"] = verify_chain

    runs["torch"] = lambda i: torch_batched(steps[i])
    runs["transformers"] = lambda i: transformers_like(steps[i])
    operators = peers.vllm()
    if isinstance(operators, str):
        skipped["vllm"] = skipped["vllm kernels"] = operators
    else:
        vllm = [Vllm(operators, x) for x in steps]
        ready = [peer.prepare() for peer in vllm]
        runs["vllm"] = lambda i: vllm[i].sampler()
        runs["vllm kernels"] = lambda i: vllm[i].kernels(*ready[i])

    # A comparison of equals: the same uniforms accept the same drafts. (vLLM's sampler draws its own.)
    accepted = [torch_batched(x)[0] for x in steps]
    for name, run in runs.items():
        if name == "vllm":
            continue
        if name == "vllm kernels":
            probs, bonus, _, inv_q = ready[0]
            found, _ = vllm[0].kernels(probs, bonus, steps[0].uniforms[:, 1:].reshape(-1), inv_q)
        else:
            found, _ = run(0)
        if not torch.equal(found.long(), accepted[0]):
            print(f"{name} accepts {found.tolist()}, torch {accepted[0].tolist()}", file=sys.stderr)

    # Floor: the target and draft rows of the drafts examined and the bonus row where all were accepted, once each.
    def floor_reads(i: int) -> list[Tensor]:
        target_rows = int((accepted[i] + 1).sum())
        draft_rows = int((accepted[i] + 1).clamp(max=drafts).sum())
        return [steps[i].target[:target_rows], steps[i].draft[:draft_rows]]

    mean_accepted = torch.cat(accepted).float().mean().item()
    return Case(
        runs, sets, floor_reads, partial=frozenset({"vllm kernels"}), skipped=skipped, facts={"accepted": mean_accepted}
    )
