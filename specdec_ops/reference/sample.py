"""Draws from rows of logits."""

import torch
from torch import Tensor

from specdec_ops.reference.distribution import draw, filters_of, processed, row_status


def sample(
    logits: Tensor,
    uniforms: Tensor,
    *,
    temperature: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    rows = logits.shape[0]
    tokens = torch.empty(rows, dtype=torch.int64)
    logprobs = torch.empty(rows)
    status = torch.empty(rows, dtype=torch.int32)
    for i, row in enumerate(logits.cpu()):
        p = processed(row, **filters_of(i, temperature, top_k, top_p, min_p))
        tokens[i] = draw(p, uniforms[i].item())
        logprobs[i] = p[tokens[i]].log()
        status[i] = row_status(row)
    return tokens.to(logits.device), logprobs.to(logits.device), status.to(logits.device)


def sample_topk(
    logits: Tensor,
    uniforms: Tensor | None,
    k: int,
    *,
    temperature: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    tokens = torch.full((logits.shape[0], k), -1, dtype=torch.int64)
    logprobs = torch.full((logits.shape[0], k), -torch.inf)
    for i, row in enumerate(logits.cpu()):
        options = filters_of(i, temperature, top_k, top_p, min_p)
        greedy = not options.get("temperature", 1.0) > 0
        if greedy:  # the tree of a greedy request needs more than one child: the best, scored at temperature 1
            options["temperature"] = 1.0
        p = processed(row, **options)
        rest = p.clone()
        for j in range(min(k, int((p > 0).sum()))):
            # argmax gives the lowest id on a tie
            x = int(rest.argmax()) if greedy or uniforms is None else draw(rest, uniforms[i, j].item())
            tokens[i, j], logprobs[i, j] = x, p[x].log()
            rest[x] = 0
    return tokens.to(logits.device), logprobs.to(logits.device)
