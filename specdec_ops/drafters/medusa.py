import heapq
import re
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from specdec_ops.drafters.base import Draft, Drafter
from specdec_ops.state import DecodeState

Choice = tuple[int, ...]  # a path of ranks: (0, 1) is the second guess of head 1 behind the first guess of head 0
Layer = dict[str, Tensor]  # "weight" and, where it has one, "bias"

_WEIGHT = re.compile(r"(?:^|.*\.)(\d+)\.(\d+)\.(linear\.)?(weight|bias)$")


class MedusaHeads(Drafter):
    """Heads on the target's last hidden state, each guessing one token further ahead.

    Args:
        path: a safetensors file with, for head `i` of `n` residual blocks, `i.j.linear.weight` and `i.j.linear.bias`
            for `j < n`, and `i.n.weight`: the format of the authors' own checkpoints.
        num_draft: nodes of the tree.
        choices: the tree itself, a node a path of ranks, instead of `num_draft`; `[(0,), (0, 0)]` is a chain.
        device, dtype: of the target.

    Source: Cai et al., "Medusa: simple LLM inference acceleration framework with multiple decoding heads", 2401.10774.
    """

    is_tree = True

    def __init__(
        self,
        path: str | Path,
        num_draft: int | None = None,
        choices: Sequence[Choice] | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
    ) -> None:
        from safetensors.torch import load_file

        weights: dict[int, dict[int, Layer]] = {}
        for name, tensor in load_file(path, device=str(device)).items():
            if match := _WEIGHT.match(name):
                head, layer, _, kind = match.groups()
                layers = weights.setdefault(int(head), {})
                layers.setdefault(int(layer), {})[kind] = tensor.to(dtype or tensor.dtype)
        if not weights:
            raise ValueError(f"{path} holds no Medusa heads: expected tensors such as '0.0.linear.weight'")
        self.heads = [[layers[j] for j in sorted(layers)] for _, layers in sorted(weights.items())]
        if (num_draft is None) == (choices is None):
            raise ValueError("num_draft and choices exclude each other: give one of them")
        choices = sorted(set(choices or likely_choices(num_draft or 0, len(self.heads))), key=lambda c: (len(c), c))
        if not choices:
            raise ValueError(f"a tree needs one node at least, got num_draft={num_draft} and choices={choices}")
        index = {(): 0, **{choice: i + 1 for i, choice in enumerate(choices)}}
        missing = [choice for choice in choices if choice[:-1] not in index]
        if missing:
            raise ValueError(f"the parents of choices {missing} are not among the choices")
        self.num_draft, self.depth = len(choices), len(choices[-1])
        if self.depth > len(self.heads):
            raise ValueError(f"the choices are {self.depth} levels deep and {path} has {len(self.heads)} heads")
        ranks = [rank for choice in choices for rank in choice]
        width, self.hidden_size = self.heads[0][-1]["weight"].shape
        if not 0 <= min(ranks) <= max(ranks) < width:
            raise ValueError(
                f"choices: expected ranks from 0 to {width - 1}, as the heads of {path} know {width} tokens; got "
                f"{min(ranks)} to {max(ranks)}"
            )
        self.topk = 1 + max(ranks)
        self.parents = torch.tensor([-1, *(index[c[:-1]] for c in choices)], dtype=torch.int32, device=device)
        # Which of the heads' candidates, `topk` a head, each node takes.
        self.picks = torch.tensor([(len(c) - 1) * self.topk + c[-1] for c in choices], device=device)

    def propose(self, state: DecodeState) -> Draft:
        heads = self.heads[: self.depth]
        candidates = torch.cat([self.logits(head, state.hidden).topk(self.topk).indices for head in heads], 1)
        return Draft(candidates[:, self.picks], parents=self.parents.repeat(len(candidates)))

    def logits(self, head: list[Layer], hidden: Tensor) -> Tensor:
        *blocks, output = head
        for block in blocks:
            hidden = hidden + nn.functional.silu(nn.functional.linear(hidden, **block))
        return nn.functional.linear(hidden, **output)


def likely_choices(num_draft: int, num_heads: int) -> list[Choice]:
    """The `num_draft` paths likeliest to be accepted if each level costs 1 and each rank below the first 1.5 more."""
    queue: list[tuple[float, Choice]] = [(1.0, (0,))]
    chosen: list[Choice] = []
    while queue and len(chosen) < num_draft:
        cost, choice = heapq.heappop(queue)
        chosen.append(choice)
        heapq.heappush(queue, (cost + 1.5, (*choice[:-1], choice[-1] + 1)))
        if len(choice) < num_heads:
            heapq.heappush(queue, (cost + 1.0, (*choice, 0)))
    return chosen
