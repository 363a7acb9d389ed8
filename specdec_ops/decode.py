"""The decode loop: draft, verify, roll back, advance.

One step (`SpeculativeDecoder.step`) takes and gives device tensors of fixed shapes and reads nothing on the host, so it
can be captured as one graph. The host launches steps, fills free slots with waiting prompts, and looks at what came out
of a step once the device has got that far.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specdec_ops import ops
from specdec_ops.cache import Nodes
from specdec_ops.config import CHAIN_RULES, TREE_RULES, DecoderConfig, SamplingParams
from specdec_ops.drafters import Draft, Drafter
from specdec_ops.ops.status import NO_FINITE_LOGIT, NOT_FINITE
from specdec_ops.request import Chunk, Metrics, Request
from specdec_ops.state import MAX_STOP_IDS, DecodeState

VERIFY_STREAM = 0  # of the random numbers; drafters use others
BAD_LOGITS = NOT_FINITE | NO_FINITE_LOGIT


class Verdict(NamedTuple):
    tokens: Tensor  # int64 [B, nodes]: accepted drafts, one more token, -1
    num_accepted: Tensor  # int32 [B]
    path: Tensor | None  # int32 [B, nodes], in a tree
    logprobs: Tensor  # float32 [B, nodes]
    status: Tensor  # int32 [B]
    candidates: Tensor  # int64 [B, nodes]: the root and its drafts, and
    depth: Tensor  # int32 [B, nodes], how deep each of them lies


class Report(NamedTuple):
    """What the host wants to know of a step. The state's own tensors are among it: copy them before the next step."""

    tokens: Tensor  # int64 [B, nodes], of which those count that have made the history longer
    logprobs: Tensor
    status: Tensor
    num_accepted: Tensor
    candidates: Tensor
    depth: Tensor
    lengths: Tensor
    finished: Tensor


class SpeculativeDecoder:
    """Lets a drafter propose and a target model decide; without a drafter it decodes plainly."""

    def __init__(self, target: Any, drafter: Drafter | None = None, config: DecoderConfig | None = None) -> None:
        from specdec_ops.integrations.transformers import PagedModel, num_positions

        self.config, self.drafter = config or DecoderConfig(), drafter or Drafter()
        self.rule, self.max_model_len = self._rule(), self._max_model_len(num_positions(target))
        slots, self.num_nodes = self.config.max_num_seqs, 1 + self.drafter.num_draft
        device = next(target.parameters()).device
        lookahead = max(self.num_nodes, self.drafter.lookahead)
        vocab_size = target.config.get_text_config().vocab_size
        self.state = DecodeState(self.config, self.max_model_len, lookahead, vocab_size, device)
        self.target = PagedModel(target, self.state.pool)
        if self.drafter.hidden_size:
            self.state.hidden = self.target.keep_hidden(slots, self.drafter.hidden_size)
        # Every request has the same number of nodes, so that shapes never change.
        self.index = torch.arange(self.num_nodes, dtype=torch.int32, device=device).repeat(slots, 1)
        self.cu_nodes = torch.arange(slots + 1, dtype=torch.int32, device=device) * self.num_nodes
        self.no_uniforms = torch.zeros(slots, self.num_nodes, device=device)
        self.run = compiled(self) if self.config.compile else self.step
        self.lag = 0 if device.type == "cpu" else 1  # steps the host looks behind the device
        self.inference_mode = torch.inference_mode()
        self.metrics = Metrics(self.drafter.depth)
        self.decoding = False
        self.running: dict[int, Request] = {}  # by slot
        self.free_blocks = self.state.pool.num_blocks

    def _rule(self) -> str:
        kind, rules = ("tree", TREE_RULES) if self.drafter.is_tree else ("chain", CHAIN_RULES)
        rule = self.config.rule or rules[0]
        if rule not in rules:
            raise ValueError(f"rule {rule!r} is not one for the {kind} that this drafter drafts; choose of {rules}")
        if self.config.adaptive and kind == "tree":
            raise ValueError("adaptive draft length and a drafter of trees exclude each other; leave adaptive off")
        return rule

    def _max_model_len(self, num_positions: int | None) -> int:
        wanted = self.config.max_model_len
        if wanted is None:
            return min(2048, num_positions or 2048)
        if num_positions is not None and wanted > num_positions:
            raise ValueError(
                f"max_model_len={wanted} is more than the target has positions for, max_position_embeddings="
                f"{num_positions}; lower max_model_len"
            )
        return wanted

    def step(self) -> Report:
        """Draft, verify, roll back, advance: tensors only."""
        draft = self.propose()
        return self.commit(self.verify(draft))

    def propose(self) -> Draft:
        draft = self.drafter.propose(self.state)
        if not self.config.adaptive:
            return draft
        return draft._replace(tokens=draft.tokens.masked_fill(self.index[:, :-1] >= self.state.num_draft[:, None], -1))

    def verify(self, draft: Draft) -> Verdict:
        state, n = self.state, self.num_nodes
        tokens = torch.cat([state.root, draft.tokens], 1)
        nodes, depth = Nodes(state.pool.block_table, state.context_lens, self.cu_nodes, n), self.index
        if draft.parents is not None:
            nodes.mask, nodes.depth = ops.tree_mask(draft.parents, self.cu_nodes, n)
            depth = nodes.depth.view_as(self.index)
        positions = state.context_lens[:, None] + depth
        ids = tokens.clamp(0, state.vocab_size - 1)  # what is no token runs as some other
        logits = self.target(ids.view(1, -1), positions.view(1, -1), nodes)
        if state.withholds:
            logits = state.withhold_stops(logits, depth)
        uniforms = self.no_uniforms if state.greedy else state.uniforms(n, VERIFY_STREAM)
        options: dict[str, Any] = {
            "draft_logits": draft.logits,
            "draft_temperature": draft.temperature,
            "temperature": state.temperature,
            "top_k": state.top_k,
            "top_p": state.top_p,
            "min_p": state.min_p,
            "rule": self.rule,
            "max_nodes": n,
        }
        packed, path = tokens.view(-1), None
        if draft.parents is None:
            emitted, accepted, logprobs, status = ops.verify_chain(logits, packed, self.cu_nodes, uniforms, **options)
        else:
            emitted, accepted, path, logprobs, status = ops.verify_tree(
                logits, packed, draft.parents, self.cu_nodes, uniforms, **options
            )
        return Verdict(emitted, accepted, path, logprobs, status, tokens, depth)

    def commit(self, verdict: Verdict) -> Report:
        state = self.state
        accepted = verdict.num_accepted.masked_fill(state.finished, -1)  # a finished request stays where it is
        ops.kv_rollback(self.target.cache.tensors, state.pool.block_table, state.context_lens, accepted, verdict.path)
        root = ops.advance(
            state.history, state.lengths, state.finished, verdict.tokens, accepted, state.stop_ids, state.max_lens
        )
        state.roots.copy_(root)
        if self.drafter.hidden_size:
            last = verdict.num_accepted[:, None].long()
            last = last if verdict.path is None else verdict.path.gather(1, last).long()
            hidden = self.target.hidden.view(*self.index.shape, -1)
            state.hidden.copy_(hidden.take_along_dim(last[:, :, None], 1).squeeze(1))
        if self.config.adaptive:
            drafted = (verdict.candidates >= 0) & (verdict.candidates < state.vocab_size)
            num_drafted = verdict.depth.masked_fill(~drafted, 0).amax(1)
            num_draft = ops.adapt_draft_length(
                state.draft_rate, num_drafted, verdict.num_accepted, max_draft=self.drafter.num_draft
            )
            state.num_draft.copy_(num_draft)
        return Report(
            verdict.tokens, verdict.logprobs, verdict.status, verdict.num_accepted, verdict.candidates, verdict.depth,
            state.lengths, state.finished,
        )  # fmt: skip

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[Request]:
        """Decodes all prompts to their ends; arguments and errors as in `stream`."""
        requests = {chunk.request.index: chunk.request for chunk in self.stream(prompts, params)}
        return [requests[index] for index in range(len(prompts))]

    def stream(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> Iterator[Chunk]:
        """Decodes prompts (token ids), yielding what each step adds to each request.

        Args:
            prompts: any number of them; those beyond `max_num_seqs` wait for a slot.
            params: for all prompts, or one each.

        Raises:
            ValueError: before any work, for a prompt or a parameter that cannot be served.
            RuntimeError: with the first chunk, while another stream of this decoder is unfinished.
        """
        if params is None or isinstance(params, SamplingParams):
            params = [params or SamplingParams()] * len(prompts)
        if len(params) != len(prompts):
            raise ValueError(f"expected one SamplingParams, or {len(prompts)}, one a prompt; got {len(params)}")
        pairs = zip(prompts, params, strict=True)
        return self._run(deque(self._request(index, list(prompt), one) for index, (prompt, one) in enumerate(pairs)))

    def _request(self, index: int, prompt: list[int], params: SamplingParams) -> Request:
        eos = self.target.model.generation_config.eos_token_id
        eos = [] if params.ignore_eos or eos is None else [eos] if isinstance(eos, int) else eos
        # An id that is no token never comes out, and steps look stop tokens up in the logits.
        ids = dict.fromkeys([*eos, *params.stop_token_ids])
        stop_ids = [token for token in ids if 0 <= token < self.state.vocab_size]
        request = Request(index, prompt, params, stop_ids)
        if params.stop:
            raise ValueError("stop: expected no strings where there are no texts, use `LLM` or stop_token_ids")
        if not prompt:
            raise ValueError(f"prompt {index} is empty; begin it with the model's beginning-of-sequence token")
        if not 0 <= min(prompt) <= max(prompt) < self.state.vocab_size:
            raise ValueError(
                f"prompt {index} has token ids outside 0 to {self.state.vocab_size - 1}; use the model's own tokenizer"
            )
        if len(request.stop_ids) > MAX_STOP_IDS:
            raise ValueError(f"prompt {index} has {len(request.stop_ids)} stop tokens; give at most {MAX_STOP_IDS}")
        if request.max_len > self.max_model_len:
            raise ValueError(
                f"prompt {index} has {len(prompt)} tokens and max_tokens={params.max_tokens}, together more than "
                f"max_model_len={self.max_model_len}; lower max_tokens or raise max_model_len"
            )
        if self.state.blocks_for(request) > self.state.pool.num_blocks:
            raise ValueError(
                f"prompt {index} needs {self.state.blocks_for(request)} pages of {self.config.block_size} tokens and "
                f"the cache has num_blocks={self.state.pool.num_blocks}; raise num_blocks or lower max_tokens"
            )
        return request

    def _run(self, waiting: deque[Request]) -> Iterator[Chunk]:
        launched: deque[tuple[HostCopy, dict[int, Request]]] = deque()
        if self.decoding:
            raise RuntimeError("this decoder is decoding already; exhaust or close that stream first")
        self.decoding = True
        try:
            while waiting or self.running:
                if waiting:
                    self._admit(waiting)
                with self.inference_mode:
                    report = self._measured_step() if self.config.measure else self.run()
                launched.append((HostCopy(report), dict(self.running)))
                if len(launched) > self.lag:
                    yield from self._receive(*launched.popleft())
        finally:
            self._retire(list(self.running))
            self.decoding = False

    @torch.no_grad()
    def _admit(self, waiting: deque[Request]) -> None:
        """Prefills waiting requests, in order, while there are slots and pages for them."""
        admitted: dict[int, Request] = {}
        for slot in range(self.config.max_num_seqs):
            if not waiting or self.state.blocks_for(waiting[0]) > self.free_blocks:
                break
            if slot not in self.running:
                self.running[slot] = admitted[slot] = waiting.popleft()
                self.free_blocks -= self.state.blocks_for(admitted[slot])
        if not admitted:
            return
        start = self._now()
        prompts = self.state.admit(admitted, self.drafter.num_draft)
        # No token is chosen here: the last one of a prompt is the request's first root.
        self.target(prompts.tokens, prompts.positions, prompts.nodes, rows=prompts.before_root)
        if self.drafter.hidden_size:
            self.state.hidden[prompts.slots] = self.target.hidden
        self.drafter.prefill(self.state, prompts)
        self.metrics.seconds["prefill"] += self._now() - start

    def _receive(self, copy: "HostCopy", owners: dict[int, Request]) -> Iterator[Chunk]:
        rows, vocab_size = list(zip(*copy.wait(), strict=True)), self.state.vocab_size
        live = {slot: request for slot, request in owners.items() if request.finish_reason is None}
        chunks = []
        for slot, request in live.items():
            tokens, logprobs, status, accepted, candidates, depth, length, finished = rows[slot]
            if status & BAD_LOGITS:
                raise RuntimeError(f"prompt {request.index}: the target's logits hold NaN or infinity")
            emitted = length - len(request.prompt) - len(request.tokens)
            drafted = max(d for d, token in zip(depth, candidates, strict=True) if 0 <= token < vocab_size)
            request.extend(tokens[:emitted], logprobs[:emitted], finished)
            self.metrics.count(emitted, drafted, accepted)
            chunks.append(Chunk(request, tokens[:emitted], logprobs[:emitted]))
        yield from chunks  # whoever reads them may end requests
        self._retire([slot for slot, request in live.items() if request.finish_reason is not None])

    def _retire(self, slots: list[int]) -> None:
        if slots:
            self.state.retire(slots)
        for slot in slots:
            self.free_blocks += self.state.blocks_for(self.running.pop(slot))

    def _measured_step(self) -> Report:
        """A step, and the time of its parts."""
        times = [self._now()]
        draft = self.propose()
        times.append(self._now())
        verdict = self.verify(draft)
        times.append(self._now())
        report = self.commit(verdict)
        times.append(self._now())
        for name, start, end in zip(("draft", "verify", "rest"), times, times[1:], strict=False):
            self.metrics.seconds[name] += end - start
        return report

    def _now(self) -> float:
        if self.state.device.type != "cpu":
            torch.accelerator.synchronize()
        return time.perf_counter()


def compiled(decoder: SpeculativeDecoder) -> Callable[[], Report]:
    """A decoder's step as one graph."""
    # torch limits how often one code object is compiled: each decoder gets its own.
    function = FunctionType(SpeculativeDecoder.step.__code__.replace(), globals())
    # To look whether any module of the models has changed took a sixth of each step of small models.
    skip = getattr(torch.compiler, "skip_guard_on_all_nn_modules_unsafe", None)  # newer torch has it
    options = {"guard_filter_fn": skip} if skip else None
    return torch.compile(MethodType(function, decoder), fullgraph=True, dynamic=False, options=options)


class HostCopy:
    """A report on its way to the host, which asks for it when it is needed."""

    def __init__(self, report: Report) -> None:
        self.columns, self.arrived = list(report), None
        if report.tokens.device.type != "cpu":
            pinned = [torch.empty_like(x, device="cpu", pin_memory=True) for x in report]
            self.columns = [to.copy_(x, non_blocking=True) for to, x in zip(pinned, report, strict=True)]
            self.arrived = torch.Event(report.tokens.device.type)
            self.arrived.record()

    def wait(self) -> list[list[Any]]:
        if self.arrived is not None:
            self.arrived.synchronize()
        return [column.tolist() for column in self.columns]
