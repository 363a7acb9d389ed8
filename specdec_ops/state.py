"""The requests in flight as device tensors of fixed shapes at fixed addresses."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from specdec_ops import ops
from specdec_ops.cache import Nodes, PagePool
from specdec_ops.config import DecoderConfig
from specdec_ops.request import Request

MAX_STOP_IDS = 16


class Prompts(NamedTuple):
    """The prompts of newly admitted requests, packed one after the other."""

    slots: Tensor  # int64, the rows of the state that they took
    tokens: Tensor  # int64 [1, N]
    positions: Tensor  # int64 [1, N]
    nodes: Nodes
    before_root: Tensor  # int64, the row of each prompt's last token but one


class DecodeState:
    """One row ("slot") a request. A row without a request is one that is finished."""

    def __init__(
        self, config: DecoderConfig, max_model_len: int, lookahead: int, vocab_size: int, device: torch.device
    ) -> None:
        slots, max_len = config.max_num_seqs, max_model_len + lookahead
        blocks = config.num_blocks
        if blocks is None:
            blocks = slots * -(-max_len // config.block_size)
        self.pool = PagePool(slots, max_len, config.block_size, blocks, device)
        self.lookahead, self.vocab_size, self.device = lookahead, vocab_size, device

        def full(value: float, dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.full((slots, *shape), value, dtype=dtype, device=device)

        self.history = full(0, torch.int64, max_len)  # the prompt, then what was emitted
        self.root = full(0, torch.int64, 1)  # the last of the history
        self.roots = self.root[:, 0]  # the same, [B]
        self.lengths = full(1, torch.int32)  # of history
        self.context_lens = full(0, torch.int32)  # tokens in the caches: all but the root
        self.finished = full(True, torch.bool)
        self.min_lens = full(0, torch.int32)
        self.max_lens = full(1, torch.int32)
        self.stop_ids = full(-1, torch.int64, MAX_STOP_IDS)
        self.seeds = full(0, torch.int64)
        self.temperature = full(0, torch.float32)
        self.top_k = full(0, torch.int32)
        self.top_p = full(1, torch.float32)
        self.min_p = full(0, torch.float32)
        self.draft_rate = full(1, torch.float32)  # moving acceptance, for drafts of adaptive length
        self.num_draft = full(0, torch.int32)
        self.hidden = full(0, torch.float32, 0)  # the target's, at the token before the root; sized by who wants it
        # What the host knows of all requests so far, so that steps can leave out what none has needed.
        self.greedy, self.withholds = True, False  # temperature 0; min_tokens

    def uniforms(self, n: int, stream: int) -> Tensor:
        """The step's random numbers `[B, n]` of one use of them."""
        return ops.philox_uniform(self.seeds, self.context_lens.long(), n, stream)

    def withhold_stops(self, logits: Tensor, depth: Tensor) -> Tensor:
        """Rules out end-of-sequence and stop tokens, in place, where fewer than `min_tokens` have been emitted."""
        early = (self.lengths[:, None] + depth < self.min_lens[:, None])[:, :, None]
        ids = self.stop_ids[:, None].expand(-1, depth.shape[1], -1)
        rows, columns = logits.view(*depth.shape, -1), ids.clamp(min=0)
        return rows.scatter_(2, columns, rows.gather(2, columns).masked_fill(early & (ids >= 0), -torch.inf)).flatten(
            0, 1
        )

    def blocks_for(self, request: Request) -> int:
        return self.pool.blocks_for(request.max_len + self.lookahead)

    def admit(self, requests: dict[int, Request], num_draft: int) -> Prompts:
        """Gives new requests, by slot, their rows and pages. All lengths come from the host: nothing is read back."""
        slots = torch.tensor(list(requests), device=self.device)
        rows = list(requests.values())
        params = [request.params for request in rows]
        lens = [len(request.prompt) for request in rows]

        def fill(column: Tensor, values: list[Any]) -> None:
            column[slots] = torch.tensor(values, dtype=column.dtype, device=self.device)

        padded = [request.prompt + [0] * (max(lens) - len(request.prompt)) for request in rows]
        self.history[slots, : max(lens)] = torch.tensor(padded, device=self.device)
        fill(self.root, [request.prompt[-1:] for request in rows])
        fill(self.lengths, lens)
        fill(self.context_lens, [n - 1 for n in lens])
        fill(self.finished, [False] * len(rows))
        fill(self.min_lens, [len(request.prompt) + request.params.min_tokens for request in rows])
        fill(self.max_lens, [request.max_len for request in rows])
        fill(self.stop_ids, [pad_stop_ids(request.stop_ids) for request in rows])
        fill(self.seeds, [int(torch.randint(2**62, ())) if p.seed is None else p.seed for p in params])
        for name in ("temperature", "top_k", "top_p", "min_p"):
            fill(getattr(self, name), [getattr(p, name) for p in params])
        self.greedy &= all(p.temperature == 0 for p in params)
        self.withholds |= any(p.min_tokens > 0 for p in params)
        fill(self.draft_rate, [1.0] * len(rows))
        fill(self.num_draft, [num_draft] * len(rows))

        reserved = torch.zeros_like(self.lengths)
        fill(reserved, [request.max_len + self.lookahead for request in rows])
        self.pool.reserve(reserved)
        starts = torch.tensor([0, *lens], device=self.device).cumsum(0)
        return Prompts(
            slots=slots,
            tokens=torch.tensor([[token for request in rows for token in request.prompt]], device=self.device),
            positions=torch.cat([torch.arange(n, device=self.device) for n in lens])[None],
            nodes=Nodes(self.pool.block_table[slots], torch.zeros_like(slots).int(), starts.int(), max(lens)),
            before_root=torch.maximum(starts[1:] - 2, starts[:-1]),
        )

    def retire(self, slots: list[int]) -> None:
        """Empties rows and gives their pages back."""
        retired = torch.zeros_like(self.finished)
        retired[slots] = True
        self.finished.logical_or_(retired)
        self.lengths.masked_fill_(retired, 1)
        self.context_lens.masked_fill_(retired, 0)
        self.pool.release(retired)


def pad_stop_ids(ids: list[int]) -> list[int]:
    """With -1 where there are none, else with one of them."""
    return ids + (ids[:1] or [-1]) * (MAX_STOP_IDS - len(ids))
