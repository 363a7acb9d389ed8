"""sample with top-k 50 and top-p 0.9 a row.

Peers: torch with a full sort (as in vLLM's native sampler); torch with topk first, which needs a top-k known to the
host; vLLM's CPU sampler (the same sort, then its C++ Gumbel argmax).
"""

import sys
from typing import Any

import torch
from torch import Tensor

from bench import inputs, peers
from bench.timing import Case, num_sets, operator

AXES = {"dtype": ["float32", "bfloat16"], "rows": [1, 8, 64], "vocab": [128256]}
QUICK = {"rows": [1, 8, 64]}

TEMPERATURE, TOP_K, TOP_P = 0.9, 50, 0.9


def inverse_cdf(probs: Tensor, uniforms: Tensor) -> Tensor:
    cumulative = probs.cumsum(1)
    return torch.searchsorted(cumulative, uniforms[:, None] * cumulative[:, -1:], right=True).squeeze(1)


def masked_by_sort(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    logits = logits.float() / temperature[:, None]
    values, ids = logits.sort(-1)
    kth = values.gather(1, values.shape[1] - top_k.long()[:, None])
    values.masked_fill_(values < kth, -torch.inf)
    below = values.softmax(-1).cumsum(-1) <= 1 - top_p[:, None]
    below[:, -1] = False
    values.masked_fill_(below, -torch.inf)
    return logits.scatter_(-1, ids, values)


def case(dtype: str, rows: int, vocab: int) -> Case:
    scalar = getattr(torch, dtype)
    sets = num_sets(rows * vocab * scalar.itemsize)
    logits = [inputs.target_logits(rows, vocab).to(scalar) for _ in range(sets)]
    uniforms = torch.rand(rows)
    temperature, top_p = torch.full((rows,), TEMPERATURE), torch.full((rows,), TOP_P)
    top_k = torch.full((rows,), TOP_K, dtype=torch.int32)

    def torch_sort(i: int) -> Tensor:
        return inverse_cdf(masked_by_sort(logits[i], temperature, top_k, top_p).softmax(-1), uniforms)

    def torch_topk(i: int) -> Tensor:
        values, ids = logits[i].float().topk(TOP_K, -1)
        probs = (values / temperature[:, None]).softmax(-1)
        probs.masked_fill_(probs.cumsum(-1) - probs >= top_p[:, None], 0)
        return ids.gather(1, inverse_cdf(probs, uniforms)[:, None]).squeeze(1)

    runs: dict[str, Any] = {}
    skipped: dict[str, str] = {}
    ours = operator("sample")
    if isinstance(ours, str):
        skipped["ours"] = ours
    else:
        runs["ours"] = lambda i: ours(logits[i], uniforms, temperature=temperature, top_k=top_k, top_p=top_p)[0]
    runs["torch sort"], runs["torch topk"] = torch_sort, torch_topk
    operators = peers.vllm()
    if isinstance(operators, str):
        skipped["vllm"] = operators
    else:
        runs["vllm"] = lambda i: operators.fused_gumbel_argmax(
            masked_by_sort(logits[i], temperature, top_k, top_p), torch.randint(0, 2**31, (rows,))
        )

    # A comparison of equals: every token lies in the filtered set, and the sort and we invert the same CDF.
    allowed = masked_by_sort(logits[0], temperature, top_k, top_p) > -torch.inf
    for name, run in runs.items():
        if not allowed.gather(1, run(0)[:, None]).all():
            print(f"{name} draws a token that the filters remove", file=sys.stderr)
    if "ours" in runs and not torch.equal(runs["ours"](0), torch_sort(0)):
        print("ours and torch sort draw different tokens from the same uniforms", file=sys.stderr)

    # Floor: the logits once.
    return Case(runs, sets, lambda i: [logits[i]], skipped=skipped)
