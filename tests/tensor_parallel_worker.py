"""What each process of test_tensor_parallel.py runs: writes the texts of its rank into a file."""

import json
import os
import sys
from pathlib import Path

import torch

from specdec_ops.config import SamplingParams, SpeculativeConfig
from specdec_ops.llm import LLM

PROMPTS = ["hello, world", "a", "abcabcab"]
PARAMS = {
    "greedy": SamplingParams(temperature=0, max_tokens=16),
    "sampled": SamplingParams(temperature=0.8, top_p=0.95, seed=7, max_tokens=16),
    "unseeded": SamplingParams(max_tokens=16),
}
DRAFTS = {
    "none": None,
    "lookup": {"method": "ngram"},
    "draft": {"draft_model": "draft"},
    "tree": {"draft_model": "draft", "tree_topk": 2, "tree_depth": 2},
}


def texts(folder: Path, world: int) -> dict[str, list[list[int]]]:
    result = {}
    for name, draft in DRAFTS.items():
        spec = None
        if draft is not None:
            paths = {"draft_model": str(folder / "draft")} if "draft_model" in draft else {}
            spec = SpeculativeConfig(num_speculative_tokens=3, **{**draft, **paths})
        llm = LLM(
            str(folder / "target"), speculative_config=spec, tensor_parallel_size=world, device="cpu", max_model_len=64
        )
        for kind, params in PARAMS.items():
            result[f"{name} {kind}"] = [output.token_ids for output in llm.generate(PROMPTS, params)]
        result[f"{name} heads"] = [[tensor.shape[2] for tensor in llm.decoder.target.cache.tensors]]
    return result


if __name__ == "__main__":
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(rank)  # a request without a seed draws one, which must not differ between ranks
    folder = Path(sys.argv[1])
    (folder / f"rank{rank}.json").write_text(json.dumps(texts(folder, world)))
