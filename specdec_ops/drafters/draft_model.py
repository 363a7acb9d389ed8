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

    def __init__(self, model: Any, num_draft: int, refed: int) -> None:
        from specdec_ops.integrations.transformers import check_model

        if num_draft < 1:
            raise ValueError(f"num_draft must be 1 or more, got {num_draft}")
        check_model(model)
        self.model, self.num_draft, self.refed = model, num_draft, refed
        self.paged: Any = None

    def prefill(self, state: DecodeState, prompts: Prompts) -> None:
        if self.paged is None or self.paged.cache.pool is not state.pool:
            self.prepare(state)
        self.paged(prompts.tokens, prompts.positions, prompts.nodes, rows=1)

    def prepare(self, state: DecodeState) -> None:
        """Makes what every step uses, for a decoder that this drafter has not served before."""
        from specdec_ops.integrations.transformers import PagedModel

        self.paged = PagedModel(self.model, state.pool)
        slots = len(state.lengths)
        self.counts = torch.arange(slots + 1, dtype=torch.int32, device=state.device)  # cu_nodes of one node each
        self.refed_cu_nodes, self.rows_before = self.counts * self.refed, self.counts[:-1] * self.refed - 1
        self.refed_index = torch.arange(self.refed, device=state.device)

    def after_root(self, state: DecodeState) -> Tensor:
        """Feeds the last tokens again; logits `[B, V]` of the token after the root."""
        start = (state.lengths - self.refed).clamp(min=0)
        positions = start[:, None] + self.refed_index
        tokens = state.history.gather(1, positions)
        root = self.rows_before + state.lengths.clamp(max=self.refed)
        nodes = Nodes(state.pool.block_table, start, self.refed_cu_nodes, self.refed)
        return self.forward(state, tokens, positions, nodes, root)

    def forward(
        self, state: DecodeState, tokens: Tensor, positions: Tensor, nodes: Nodes, rows: Tensor | int = 0
    ) -> Tensor:
        """Logits of the nodes without the ids that are padding in the target's vocabulary."""
        logits = self.paged(tokens, positions, nodes, rows)
        return logits if logits.shape[1] <= state.vocab_size else logits[:, : state.vocab_size]


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
        super().__init__(model, num_draft, refed=2)  # the root, and the last draft if all were accepted
        self.depth, self.lookahead, self.temperature = num_draft, num_draft, temperature

    def prepare(self, state: DecodeState) -> None:
        super().prepare(state)
        self.ahead = torch.arange(self.num_draft - 1, dtype=torch.int32, device=state.device)[:, None]
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
        positions = (state.lengths + self.ahead).unbind()
        logits = self.after_root(state)
        tokens: list[Tensor] = []
        for i in range(self.num_draft):
            if i > 0:
                nodes = Nodes(state.pool.block_table, positions[i - 1], self.counts, 1)
                logits = self.forward(state, tokens[-1], positions[i - 1], nodes)
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
        super().__init__(model, num_draft, refed=depth + 1)  # all that one step may have accepted, and the root
        self.topk, self.depth, self.lookahead = topk, depth, (depth - 1) * topk

    def prepare(self, state: DecodeState) -> None:
        super().prepare(state)
        slots, k, device = len(state.lengths), self.topk, state.device

        def integers(values: Iterable[int]) -> Tensor:
            return torch.tensor([*values], dtype=torch.int32, device=device)

        # The model runs over the nodes with children, k a level, one level at a time.
        levels = integers(range(self.depth - 1))
        self.depths = levels[:, None, None].expand(-1, 1, k)
        self.level_starts = (levels * k)[:, None]
        self.cu_nodes = [self.counts * n for n in range(k, self.depth * k, k)]
        self.roots = integers([-1] * k).expand(slots, k)
        self.branches = [integers(i // k + level * k for i in range(k**2)) for level in range(self.depth - 2)]
        self.all = torch.arange(k, device=device).expand(slots, k)
        self.first_level = ops.tree_mask(self.roots.flatten(), self.counts * k, k)
        # The expanded tree has a column a node: the root; k nodes; k * k a level; and nodes that stand for no draft,
        # the unlikeliest of all, so that no request has fewer nodes than are kept.
        first = integers([1, *range(1 + k, 1 + k + (self.depth - 2) * k**2, k**2)])
        self.first_parents = first[:, None, None].expand(-1, 1, k)
        self.root_parents = integers([-1] + [0] * k).expand(slots, -1)
        self.no_parents = integers([0] * self.num_draft).expand(slots, -1)
        self.no_tokens = self.no_parents.long() + state.vocab_size
        self.root_score = torch.zeros(slots, 1, device=device)
        self.no_scores = self.root_score - 1e30 + self.no_parents

    def propose(self, state: DecodeState) -> Draft:
        slots, k = len(state.lengths), self.topk
        new, score = ops.sample_topk(self.after_root(state), None, k)
        tokens, scores, bests, parents = [state.root, new], [self.root_score, score], [self.all], [self.roots]
        chosen = new  # nodes of the latest level that get children: of the first all, then the best
        positions = (state.lengths[:, None] + self.depths).unbind()
        starts = (state.lengths + self.level_starts).unbind()
        for level in range(self.depth - 1):
            if level > 0:
                score, best = score.topk(k, 1)
                chosen = new.gather(1, best)
                bests.append(best)
                parents.append(self.branches[level - 1].take(best))
            nodes = self.nodes(state, parents, starts[level])
            logits = self.forward(state, chosen, positions[level], nodes)
            new, logprobs = ops.sample_topk(logits, None, k)
            new, score = new.view(slots, -1), (logprobs + score.view(-1, 1)).view(slots, -1)
            tokens.append(new)
            scores.append(score)
        behind = [(torch.stack(bests, 1)[..., None] + self.first_parents).flatten(1).int()] if self.depth > 1 else []
        kept, kept_parents, _ = ops.tree_select(
            torch.cat([*tokens, self.no_tokens], 1),
            torch.cat([*scores, self.no_scores], 1),
            torch.cat([self.root_parents, *behind, self.no_parents], 1),
            1 + self.num_draft,
        )
        drafts = kept.view(slots, -1)[:, 1:]
        return Draft(drafts.masked_fill(drafts >= state.vocab_size, -1), kept_parents)

    def nodes(self, state: DecodeState, parents: list[Tensor], start: Tensor) -> Nodes:
        """The nodes that the model has run over and, the last of them, those that it runs over now."""
        rest = Nodes(state.pool.block_table, start, self.cu_nodes[0], self.topk, *self.first_level)
        if len(parents) == 1:
            return rest
        cu_nodes, n = self.cu_nodes[len(parents) - 1], len(parents) * self.topk
        mask, depth = ops.tree_mask(torch.cat(parents, 1).flatten(), cu_nodes, n)
        return Nodes(state.pool.block_table, state.lengths, cu_nodes, n, mask, depth, rest)
