from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from specdec_ops import ops
from specdec_ops.cache import Nodes
from specdec_ops.drafters.base import Draft, Drafter
from specdec_ops.state import DecodeState, Prompts

DRAFT_STREAM = 1  # of the random numbers


class _ModelDrafter(Drafter):
    """A smaller model with the target's tokenizer, its cache on the pages of the target's.

    The cache is rolled back by nothing but lengths: a step first feeds the last `refed` tokens of the history again,
    which overwrites what rejected drafts left and fills in the accepted drafts that the model had not seen.
    """

    def __init__(self, model: Any, num_draft: int, refed: int, tokens_ahead: range) -> None:
        from specdec_ops.integrations.transformers import check_model

        if num_draft < 1:
            raise ValueError(f"num_draft must be 1 or more, got {num_draft}")
        check_model(model)
        self.model, self.num_draft, self.refed, self.tokens_ahead = model, num_draft, refed, tokens_ahead
        self.paged: Any = None

    def prefill(self, state: DecodeState, prompts: Prompts) -> None:
        if self.paged is None or self.paged.cache.pool is not state.pool:
            self.prepare(state)
        self.forward(prompts.tokens, prompts.positions, prompts.nodes, rows=1)

    def prepare(self, state: DecodeState) -> None:
        """Makes what every step uses, for a decoder that this drafter has not served before.

        A step begins by filling in tensors made here, whose views are its forwards' arguments: small operators are what
        a step spends its time on. `self.ahead` are the requests' lengths and `tokens_ahead` more, `[1, B]` each.
        """
        from specdec_ops.integrations.transformers import PagedModel

        self.paged = PagedModel(self.model, state.pool)
        self.vocab_size, self.padding = state.vocab_size, self.paged.vocab_size - state.vocab_size
        slots, refed, device = len(state.lengths), self.refed, state.device
        self.counts = torch.arange(slots + 1, dtype=torch.int32, device=device)  # cu_nodes of one node each
        # Rows of `lengths`: where the tokens fed again start; which of their logits is the root's; lengths ahead.
        before, start = self.counts[None, :-1] * refed - 1, torch.zeros_like(self.counts[None, :-1])
        self.offsets = torch.cat([start - refed, before, *(start + n for n in self.tokens_ahead)])
        most = torch.full_like(self.offsets, torch.iinfo(torch.int32).max)
        most[1] = before + refed
        self.bounds = torch.zeros_like(most), most
        self.lengths = torch.zeros_like(most)
        self.start, self.root_row, *_ = self.lengths
        self.start_column = self.start[:, None]
        self.ahead = self.lengths[2:, None].unbind()
        self.refed_index = torch.arange(refed, device=device)
        self.refed_tokens, self.refed_positions = torch.zeros(2, slots, refed, dtype=torch.int64, device=device)
        nodes = Nodes(state.pool.block_table, self.start, self.counts * refed, refed)
        self.refed_inputs = self.refed_tokens.view(1, -1), self.refed_positions.view(1, -1), nodes, self.root_row

    def after_root(self, state: DecodeState) -> Tensor:
        """Feeds the last tokens again; logits `[B, V]` of the token after the root."""
        if self.paged.cache.pool is not state.pool:
            raise RuntimeError("this drafter serves another decoder by now; give decoders that run together one each")
        torch.add(state.lengths, self.offsets, out=self.lengths)
        torch.clamp(self.lengths, *self.bounds, out=self.lengths)
        torch.add(self.start_column, self.refed_index, out=self.refed_positions)
        torch.gather(state.history, 1, self.refed_positions, out=self.refed_tokens)
        return self.forward(*self.refed_inputs)

    def forward(self, tokens: Tensor, positions: Tensor, nodes: Nodes, rows: Tensor | int = 0) -> Tensor:
        """Logits of the nodes, of the ids that the target's vocabulary has; ids that only it has run as some other."""
        if self.padding < 0:
            tokens = tokens.clamp(max=self.paged.vocab_size - 1)
        logits = self.paged(tokens, positions, nodes, rows)
        return logits[:, : self.vocab_size] if self.padding > 0 else logits


class DraftModel(_ModelDrafter):
    """A chain of drafts, each sampled from a draft model.

    Args:
        model: a transformers model with the target's tokenizer; the vocabularies may be padded to different sizes.
        num_draft: drafts a step.
        temperature: of the drafts; None takes each request's. Requests at temperature 0 draft at 0.

    Source: Leviathan et al., "Fast inference from transformers via speculative decoding", 2211.17192.
    """

    def __init__(self, model: Any, num_draft: int, temperature: float | None = None) -> None:
        if temperature is not None and not temperature >= 0:
            raise ValueError(f"the draft temperature must be 0 or more, got {temperature}")
        # Fed again: the root, and the last draft if all were accepted.
        super().__init__(model, num_draft, refed=2, tokens_ahead=range(num_draft - 1))
        self.depth, self.lookahead, self.temperature = num_draft, num_draft, temperature

    def prepare(self, state: DecodeState) -> None:
        super().prepare(state)
        block_table = state.pool.block_table
        self.inputs = [(lengths, Nodes(block_table, lengths[0], self.counts, 1)) for lengths in self.ahead]
        self.no_uniforms = torch.zeros(self.num_draft, len(state.lengths), device=state.device).unbind()
        # What the children of each node were drawn from; the last node has none. An id that the model lacks is -inf.
        slots, vocab_size = len(state.lengths), min(self.paged.vocab_size, state.vocab_size)
        shape = (slots * (self.num_draft + 1), state.vocab_size)
        self.logits = torch.full(shape, -torch.inf, dtype=self.model.dtype, device=state.device)
        self.logits_after = self.logits.view(slots, -1, state.vocab_size)[:, :-1, :vocab_size].unbind(1)

    def propose(self, state: DecodeState) -> Draft:
        temperature = state.temperature
        if self.temperature is not None:
            temperature = torch.where(temperature > 0, self.temperature, 0.0)
        uniforms = self.no_uniforms
        if not state.greedy:
            uniforms = state.uniforms(self.num_draft, DRAFT_STREAM).t().contiguous().unbind()
        logits = self.after_root(state)
        tokens: list[Tensor] = []
        for i in range(self.num_draft):
            if i > 0:
                logits = self.forward(tokens[-1].view(1, -1), *self.inputs[i - 1])
            if not state.greedy:
                self.logits_after[i].copy_(logits)
            tokens.append(ops.sample(logits, uniforms[i], temperature=temperature)[0])
        drafts = torch.stack(tokens, 1)
        if state.greedy:
            return Draft(drafts)
        return Draft(drafts, logits=self.logits, temperature=temperature)


class DraftTree(_ModelDrafter):
    """A tree of drafts that follows the draft model's confidence: expanded level by level, then pruned.

    Args:
        model: a transformers model with the target's tokenizer; the vocabularies may be padded to different sizes.
        num_draft: nodes kept of the expanded tree, those with the highest cumulative probability.
        topk: children a node, and nodes of a level that get children.
        depth: levels.

    Source: Li et al., "EAGLE-2: faster inference of language models with dynamic draft trees", 2406.16858.
    """

    is_tree = True

    def __init__(self, model: Any, num_draft: int, topk: int = 4, depth: int = 4) -> None:
        most = topk + (depth - 1) * topk**2
        if topk < 1 or depth < 1 or num_draft > most:
            raise ValueError(f"num_draft={num_draft} is more than the {most} nodes of topk={topk} and depth={depth}")
        vocab_size = model.config.get_text_config().vocab_size
        if topk > vocab_size:
            raise ValueError(f"topk={topk} is more than the draft model's vocabulary of {vocab_size}")
        # Fed again: all that one step may have accepted, and the root. Ahead: where a level's nodes start.
        super().__init__(model, num_draft, refed=depth + 1, tokens_ahead=range(0, (depth - 1) * topk, topk))
        self.topk, self.depth, self.lookahead = topk, depth, (depth - 1) * topk

    def prepare(self, state: DecodeState) -> None:
        slots, k, device, levels = len(state.lengths), self.topk, state.device, range(1, self.depth)
        super().prepare(state)

        def integers(values: Iterable[int]) -> Tensor:
            return torch.tensor([*values], dtype=torch.int32, device=device)

        # Level 0 are the root's children. A level's nodes and their scores, cumulative log-probabilities, have a row a
        # parent; `by_request` a row a request.
        rows = [slots, *(slots * k for _ in levels)]
        self.new = [torch.zeros(n, k, dtype=torch.int64, device=device) for n in rows]
        self.scores = [torch.zeros(n, k, device=device) for n in rows]
        self.new_by_request, self.scores_by_request = ([x.view(slots, -1) for x in t] for t in (self.new, self.scores))
        # Those that get children, of level 0 all, then the `best` k: over them the model runs, a level at a time.
        best = torch.arange(k, device=device).repeat(self.depth - 1, slots, 1)
        self.best, self.best_by_request = best.unbind(), best.transpose(0, 1)[..., None].expand(-1, -1, -1, k)
        self.chosen = torch.zeros(slots, k, dtype=torch.int64, device=device)
        self.chosen_scores, self.root_score = torch.zeros(slots, k, device=device), torch.zeros(slots, 1, device=device)
        chosen = [(self.new[0], self.scores[0]), *[(self.chosen, self.chosen_scores)] * self.depth]
        self.ids = [tokens.view(1, -1) for tokens, _ in chosen]
        self.parent_scores = [self.root_score, *(scores.view(-1, 1) for _, scores in chosen)]
        self.depths = integers(range(self.depth - 1))[:, None, None].expand(-1, 1, k)
        self.positions = torch.zeros(self.depth - 1, slots, k, dtype=torch.int32, device=device)
        self.level_positions = self.positions.view(-1, 1, slots * k).unbind()
        # Their places among all nodes that the model has run over.
        self.roots = integers([-1] * k).repeat(slots, 1)
        mask_and_depth = ops.tree_mask(self.roots.flatten(), self.counts * k, k)
        self.rest = [
            Nodes(state.pool.block_table, start[0], self.counts * k, k, *mask_and_depth) for start in self.ahead
        ]
        self.cu_nodes = [self.counts * level * k for level in range(self.depth)]
        self.branches = [integers(i // k + (level - 1) * k for i in range(k**2)) for level in levels]
        # The expanded tree has a column a node: the root; k nodes; k * k a level; and nodes that stand for no draft,
        # the unlikeliest of all, so that no request has fewer nodes than are kept.
        starts = integers([1, *range(1 + k, 1 + k + (self.depth - 2) * k**2, k**2)][: self.depth - 1])
        columns = starts[:, None] + integers(range(k**2))
        self.columns = columns[..., None].expand(slots, -1, -1, k)
        self.root_parents = integers([-1] + [0] * k).expand(slots, -1)
        self.parents = torch.zeros(slots, self.depth - 1, k, k, dtype=torch.int32, device=device)
        self.parents_by_request = self.parents.view(slots, -1)
        self.no_parents = integers([0] * self.num_draft).expand(slots, -1)
        self.no_tokens = self.no_parents.long() + state.vocab_size
        self.no_scores = self.root_score - 1e30 + self.no_parents

    def propose(self, state: DecodeState) -> Draft:
        torch.add(state.lengths[:, None], self.depths, out=self.positions)
        logits = self.after_root(state)
        parents = [self.roots]
        for level in range(self.depth):
            if level > 0:
                nodes = self.rest[0] if level == 1 else self.choose(state, level, parents)
                logits = self.forward(self.ids[level - 1], self.level_positions[level - 1], nodes)
            new, logprobs = ops.sample_topk(logits, None, self.topk)
            torch.clamp(new, min=0, out=self.new[level])  # what is no token has the score -inf
            torch.add(logprobs, self.parent_scores[level], out=self.scores[level])
        torch.gather(self.columns, 2, self.best_by_request, out=self.parents)
        kept, kept_parents, _ = ops.tree_select(
            torch.cat([state.root, *self.new_by_request, self.no_tokens], 1),
            torch.cat([self.root_score, *self.scores_by_request, self.no_scores], 1),
            torch.cat([self.root_parents, self.parents_by_request, self.no_parents], 1),
            1 + self.num_draft,
        )
        return Draft(kept.view(-1, 1 + self.num_draft)[:, 1:], kept_parents)

    def choose(self, state: DecodeState, level: int, parents: list[Tensor]) -> Nodes:
        """Chooses whose children this level is: what the model has run over and, last, those that it runs over now."""
        best, n = self.best[level - 1], level * self.topk
        torch.topk(self.scores_by_request[level - 1], self.topk, out=(self.chosen_scores, best))
        torch.gather(self.new_by_request[level - 1], 1, best, out=self.chosen)
        parents.append(self.branches[level - 2].take(best))
        mask, depth = ops.tree_mask(torch.cat(parents, 1).view(-1), self.cu_nodes[level], n)
        return Nodes(state.pool.block_table, state.lengths, self.cu_nodes[level], n, mask, depth, self.rest[level - 1])
