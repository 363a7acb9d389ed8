"""What the first person with an Ascend NPU should run: `make npu-check`, or `python -m bench.npu_check`.

Builds the Ascend C kernels, runs the conformance suite on the device, times the operators beside torch_npu's,
vllm-ascend's and sgl-kernel-npu's, and writes one report. A step that fails is written down, and the next one runs.
See docs/npu.md.
"""

import argparse
import importlib
import importlib.metadata
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench import npu_model, tree, verify

NO_NPU = 3  # exit status
ROOT = Path(__file__).resolve().parents[1]
ATTENTION = {"batch": [1, 8, 64], "context": [1024, 8192], "nodes": [5, 64], "heads": [32, 64]}
CHAINS = {"batch": [1, 8, 64], "drafts": [4], "vocab": [32000, 152064]}
TREES = {"batch": [1, 8], "nodes": [64], "vocab": [32000, 152064]}
OURS = {**npu_model.FULL, npu_model.tree_attention: ATTENTION}


def no_npu() -> str | None:
    """Why there is no NPU, if there is none."""
    if importlib.util.find_spec("torch_npu") is None:
        return "torch_npu is not installed (pip install torch_npu, of torch's version)"
    try:
        importlib.import_module("torch_npu")
    except (ImportError, OSError) as error:
        return f"torch_npu cannot be imported: {error} (has CANN's set_env.sh been sourced?)"
    return (
        None
        if torch.get_device_module("npu").is_available()
        else "torch_npu sees no device (what does npu-smi info say?)"
    )


def machine() -> dict[str, Any]:
    versions = {}
    for package in ("torch", "torch_npu", "vllm", "vllm_ascend", "sgl_kernel_npu", "triton_ascend"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    return {
        "device": torch.get_device_module("npu").get_device_name(0),
        "cann": str(Path(os.environ.get("ASCEND_HOME_PATH", "not set")).resolve()),
        "versions": versions,
        "commit": commit,
    }


def command(*words: str, **environment: str) -> dict[str, Any]:
    """Runs Python with these arguments. The last lines it printed are kept."""
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    tail = done.stdout.splitlines()[-200:]
    print("\n".join(tail[-3:]))
    return {"status": done.returncode, "seconds": time.monotonic() - start, "output": tail}


def build() -> dict[str, Any]:
    return command("setup.py", "build_ext", "--inplace", SPECDEC_NPU="1")


def conformance() -> dict[str, Any]:
    return command("-m", "pytest", "-q", "-ra", "tests/ops", "-k", "npu")


def microseconds(run: Callable[[], Any]) -> float:
    """Of one call, back to back on one stream: the median of five bursts."""
    synchronize = torch.get_device_module("npu").synchronize
    for _ in range(10):
        run()
    synchronize()
    bursts = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(50):
            run()
        synchronize()
        bursts.append((time.perf_counter() - start) / 50 * 1e6)
    return statistics.median(bursts)


def ours(make: Callable[..., npu_model.Case], **point: int) -> Callable[[], Any]:
    case = make(**point)
    return lambda: case.run(torch.ops.specdec)


def fused_infer_attention(batch: int, context: int, nodes: int, heads: int) -> Callable[[], Any]:
    """torch_npu's attention over the same cache, for a chain: it takes no tree's bits, and lengths as host lists."""
    operator = importlib.import_module("torch_npu").npu_fused_infer_attention_score
    tokens, block = context + nodes, npu_model.BLOCK
    table = npu_model.pages(batch, tokens)
    caches = [
        torch.randn(table.numel(), block, npu_model.KV_HEADS * npu_model.DIM, dtype=torch.bfloat16) for _ in range(2)
    ]
    q = torch.randn(batch * nodes, heads, npu_model.DIM, dtype=torch.bfloat16)
    hidden = torch.ones(2048, 2048, dtype=torch.bool).triu(1)
    ends, kv_lens = [nodes * (b + 1) for b in range(batch)], [tokens] * batch
    return lambda: operator(
        q,
        *caches,
        atten_mask=hidden,
        block_table=table,
        input_layout="TND",
        block_size=block,
        actual_seq_lengths=ends,
        actual_seq_lengths_kv=kv_lens,
        num_key_value_heads=npu_model.KV_HEADS,
        num_heads=heads,
        scale=npu_model.DIM**-0.5,
        sparse_mode=3,
    )


def vllm_ascend_rejection(batch: int, drafts: int, vocab: int) -> Callable[[], Any]:
    """From target logits to tokens: softmax, noise, recovered tokens, rejection. Bonus token and q are given."""
    peer = importlib.import_module("vllm_ascend.sample.rejection_sampler")
    x = verify.Inputs(torch.bfloat16, batch, drafts, vocab)
    target, tokens, ends = x.target[x.draft_rows], x.draft_tokens.flatten(), x.cu_drafts.int()
    bonus, greedy = torch.zeros(batch, dtype=torch.int64), torch.zeros(batch, dtype=torch.bool)
    noise, uniforms = torch.empty(batch, vocab), torch.empty(batch * drafts)

    def run() -> Tensor:
        given = (ends, tokens, x.draft_probs, target.float().softmax(-1))
        recovered = torch.empty_like(tokens)
        peer.sample_recovered_tokens_pytorch(recovered, *given, noise.exponential_(), vocab)
        out = tokens.new_full((batch, drafts + 1), -1)
        peer.rejection_random_sample_pytorch(out, *given, bonus, recovered, uniforms.uniform_(), greedy, drafts, vocab)
        return out

    return run


def sgl_kernel_npu_tree(batch: int, nodes: int, vocab: int) -> Callable[[], Any]:
    """From logits to tokens: a softmax, then target-only verification of the same trees."""
    peer = importlib.import_module("sgl_kernel_npu.sample.tree_speculative_sampling_target_only")
    x = tree.Inputs(torch.bfloat16, batch, nodes, vocab)
    first, following = torch.full((2, batch, nodes), -1, dtype=torch.int64, device="cpu")
    for request, parents in enumerate(x.parents.tolist()):
        for node in range(nodes - 1, 0, -1):  # backwards: the last child put in becomes the first
            following[request, node] = first[request, parents[node]]
            first[request, parents[node]] = node
    index = torch.arange(batch * nodes).view(batch, nodes)
    first, following = first.to(index.device), following.to(index.device)
    predicts = torch.zeros(batch * nodes, dtype=torch.int32)
    accepted = torch.full((batch, nodes), -1, dtype=torch.int32)
    count, last = torch.zeros(batch, dtype=torch.int32), torch.rand(batch)

    def run() -> None:
        probs = x.target.float().softmax(-1).view(batch, nodes, vocab)
        where = (predicts, accepted, count, x.tokens, index, first, following)
        peer.tree_speculative_sampling_target_only(*where, x.uniforms, last, probs, torch.empty_like(probs))

    return run


def benchmarks() -> list[dict[str, Any]]:
    """A row for each operator and shape, ours and the peers'; `error` says why a time is missing."""
    importlib.import_module("specdec_ops")
    runs: list[tuple[str, Callable[..., Any], dict[str, list[int]]]] = []
    for make, axes in OURS.items():
        runs.append((make.__name__, lambda make=make, **point: ours(make, **point), axes))
    runs.append(("npu_fused_infer_attention_score", fused_infer_attention, ATTENTION))
    runs.append(("vllm_ascend rejection", vllm_ascend_rejection, CHAINS))
    runs.append(("sgl_kernel_npu tree target_only", sgl_kernel_npu_tree, TREES))
    rows = []
    for name, make_run, axes in runs:
        for point in npu_model.points(axes):
            row: dict[str, Any] = {"operator": name, "point": point}
            try:
                torch.manual_seed(0)
                with torch.device("npu"):
                    run = make_run(**point)
                row["microseconds"] = microseconds(run)
            except Exception as error:  # whatever a peer or a device raises: it belongs in the report
                row["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
            print(row)
            rows.append(row)
    return rows


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.npu_check", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("npu-report.json"), help="the report")
    args = parser.parse_args(argv)
    reason = no_npu()
    if reason:
        print(f"no NPU: {reason}", file=sys.stderr)
        raise SystemExit(NO_NPU)
    report: dict[str, Any] = {}
    steps = {"machine": machine, "build": build, "conformance": conformance, "benchmarks": benchmarks}
    for name, step in steps.items():
        print(f"=== {name}")
        try:
            report[name] = step()
        except Exception:  # the other steps are worth having
            report[name] = {"error": traceback.format_exc()}
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    print(f"written: {args.out}")


if __name__ == "__main__":
    main()
