"""Two processes that share a model give the text that one gives."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tensor_parallel_worker import DRAFTS, texts
from tiny_models import byte_tokenizer, make_model, similar_model

pytest.importorskip("accelerate", reason="transformers needs accelerate to share a model between processes")


@pytest.mark.slow
def test_two_ranks_give_the_text_of_one(tmp_path):
    target = make_model(vocab_size=256)
    for name, model in {"target": target, "draft": similar_model(target)}.items():
        model.save_pretrained(tmp_path / name)
        byte_tokenizer().save_pretrained(tmp_path / name)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),  # the package that this process has
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",  # two processes on the CPU, whatever else there is
        "ASCEND_RT_VISIBLE_DEVICES": "",
    }
    worker = Path(__file__).with_name("tensor_parallel_worker.py")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run = subprocess.run([*launch, str(worker), str(tmp_path)], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2))
    assert first == second
    alone = texts(tmp_path, 1)
    for draft in DRAFTS:
        assert set(alone[f"{draft} heads"][0]) == {2} and set(first[f"{draft} heads"][0]) == {1}  # they do share
        for kind in ("greedy", "sampled"):
            assert first[f"{draft} {kind}"] == alone[f"{draft} {kind}"], (draft, kind)
