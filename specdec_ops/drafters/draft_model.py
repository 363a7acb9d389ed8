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
        from specdec_ops.integrations.transformers import PagedModel

        if self.paged is None or self.paged.cache.pool is not state.pool:
            self.paged = PagedModel(self.model, state.pool)
        self.paged(prompts.tokens, prompts.positions, prompts.nodes, rows=1)

    def after_root(self, state: DecodeState) -> Tensor:
        """Feeds the last tokens again; logits `[B, V]` of the token after the root."""
        start = (state.lengths - self.refed).clamp(min=0)
        positions = start[:, None] + torch.arange(self.refed, dtype=torch.int32, device=start.device)
        tokens = state.history.gather(1, positions.long())
        logits = self.forward(state, tokens, positions, start)
        root = (state.lengths - 1 - start).long()
        return logits.take_along_dim(root[:, None, None], 1).squeeze(1)

    def forward(
        self,
        state: DecodeState,
        tokens: Tensor,
        positions: Tensor,
        context_lens: Tensor,
        mask: Tensor | None = None,
        depth: Tensor | None = None,
    ) -> Tensor:
        """Logits `[B, n, V]` of nodes `[B, n]`, brought to the target's vocabulary: padding ids come and go."""
        slots, n = tokens.shape
        cu_nodes = torch.arange(slots + 1, dtype=torch.int32, device=tokens.device) * n
        nodes = Nodes(state.pool.block_table, context_lens, cu_nodes, n, mask, depth)
        logits = self.paged(tokens.flatten(), positions.flatten(), nodes).view(slots, n, -1)
        logits = logits[..., : state.vocab_size]
        return torch.nn.functional.pad(logits, (0, state.vocab_size - logits.shape[-1]), value=-torch.inf)


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

    def propose(self, state: DecodeState) -> Draft:
        temperature = state.temperature
        if self.temperature is not None:
            temperature = torch.where(temperature > 0, self.temperature, 0.0)
        uniforms = ops.philox_uniform(state.seeds, state.root_position, self.num_draft, DRAFT_STREAM)
        logits, tokens = [self.after_root(state)], []
        for i in range(self.num_draft):
            token, _, _ = ops.sample(logits[i], uniforms[:, i].contiguous(), temperature=temperature)
            tokens.append(token)
            if i + 1 < self.num_draft:
                position = state.lengths + i
                logits.append(self.forward(state, token[:, None], position, position).squeeze(1))
        logits.append(logits[-1])  # the last draft has no children: any row will do
        return Draft(torch.stack(tokens, 1), logits=torch.stack(logits, 1).flatten(0, 1), temperature=temperature)


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
        self.topk, self.depth, self.lookahead = topk, depth, 1 + (depth - 1) * topk

    def propose(self, state: DecodeState) -> Draft:
        slots, k, device = len(state.lengths), self.topk, state.lengths.device
        new, scores = ops.sample_topk(self.after_root(state), None, k)
        # The expanded tree, a column a node.
        tokens, all_scores = [state.root, new], [scores.new_zeros(slots, 1), scores]
        root = torch.full((slots, 1), -1, dtype=torch.int32, device=device)
        parents = [root, torch.zeros_like(new, dtype=torch.int32)]
        # Those of the latest level that get children; and the tree the model runs over, of the root and all of these.
        frontier, frontier_tokens = torch.arange(1, k + 1, dtype=torch.int32, device=device).expand(slots, k), new
        fed_tokens, fed_parents = [state.root], [root]
        frontier_parents = parents[1]
        for level in range(1, self.depth):
            fed_tokens.append(frontier_tokens)
            fed_parents.append(frontier_parents)
            logits = self.forward_tree(state, torch.cat(fed_tokens, 1), torch.cat(fed_parents, 1))[:, -k:]
            new, logprobs = ops.sample_topk(logits.flatten(0, 1), None, k)
            new, scores = new.view(slots, -1), (scores[:, :, None] + logprobs.view(slots, k, k)).flatten(1)
            first = 1 + k + (level - 1) * k**2  # of the new nodes in the expanded tree
            tokens.append(new)
            all_scores.append(scores)
            parents.append(frontier.repeat_interleave(k, 1))
            scores, best = scores.topk(k, 1)
            frontier, frontier_tokens = (first + best).int(), new.gather(1, best)
            frontier_parents = (1 + (level - 1) * k + best // k).int()
        kept, kept_parents, cu_nodes = ops.tree_select(
            torch.cat(tokens, 1), torch.cat(all_scores, 1), torch.cat(parents, 1), 1 + self.num_draft
        )
        # Requests with fewer candidates than that come packed; here every request has the same number of rows.
        rows = cu_nodes[:-1, None] + torch.arange(1 + self.num_draft, device=device)
        beyond = rows >= cu_nodes[1:, None]
        rows = rows.clamp(max=len(kept) - 1)
        return Draft(
            kept[rows].masked_fill(beyond, -1)[:, 1:], parents=kept_parents[rows].masked_fill(beyond, 0).flatten()
        )

    def forward_tree(self, state: DecodeState, tokens: Tensor, parents: Tensor) -> Tensor:
        slots, n = tokens.shape
        cu_nodes = torch.arange(slots + 1, dtype=torch.int32, device=tokens.device) * n
        mask, depth = ops.tree_mask(parents.flatten(), cu_nodes, n)
        context_lens = state.lengths - 1  # the root is a node
        positions = context_lens[:, None] + depth.view(slots, n)
        return self.forward(state, tokens, positions, context_lens, mask, depth)
