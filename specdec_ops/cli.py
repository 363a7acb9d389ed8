"""The command `specdec`: generate text, measure speed-ups, plan memory and gains, see what is installed."""

import argparse
import dataclasses
import importlib.util
import json
import os
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from specdec_ops import doctor, plan, sweep
from specdec_ops.config import CHAIN_RULES, METHODS, TREE_RULES, SamplingParams, SpeculativeConfig
from specdec_ops.llm import (
    LLM,
    check_same_tokenizer,
    default_device,
    load_model,
    load_tokenizer,
    model_source,
    num_processes,
)
from specdec_ops.request import Metrics


def main(argv: Sequence[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    try:
        args.command(args)
    except KeyboardInterrupt:
        return 130
    except (ValueError, OSError, RuntimeError, ImportError) as error:
        print(f"specdec: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="specdec", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, function: Any, purpose: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=purpose, description=purpose)
        sub.set_defaults(command=function)
        return sub

    sub = command("generate", generate, "stream text as it is accepted, then a summary")
    add_model(sub)
    add_drafting(sub)
    sub.add_argument("-k", type=int, default=4, help="drafts a step (4); 0 decodes plainly")
    sub.add_argument("--prompt", help="text to continue; without it, what comes on standard input")
    add_sampling(sub)

    sub = command("bench", bench, "compare numbers of drafts a step with plain decoding")
    add_model(sub)
    add_drafting(sub)
    sub.add_argument("-k", type=int, nargs="+", default=[1, 2, 3, 4, 6, 8], help="drafts a step (1 2 3 4 6 8)")
    sub.add_argument("--prompt", action="append", help="several make a batch; without it, what comes on standard input")
    add_sampling(sub, max_tokens=128)
    sub.add_argument("--compile", action="store_true", help="run every step, plain ones too, as one compiled graph")
    sub.add_argument("--repeats", type=int, default=5, help="runs of each, in turn (5); medians are shown")
    sub.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    sub.add_argument("--png", type=Path, metavar="FILE", help="draw the results here; needs matplotlib")

    sub = command("plan", make_plan, "work out memory and speed-up; a folder with a config.json is enough")
    add_model(sub)
    sub.add_argument("--draft-model", help="a smaller model with the same tokenizer; without it, prompt lookup")
    sub.add_argument("-k", type=int, nargs="+", default=[1, 2, 3, 4, 6, 8], help="drafts a step (1 2 3 4 6 8)")
    sub.add_argument("--devices", type=int, default=1, help="that share the models (1)")
    sub.add_argument("--device-memory", type=float, metavar="GIB", help="of each; else that of the device found here")
    sub.add_argument("--memory-fraction", type=float, default=0.9, help="of it that may be used (0.9)")
    sub.add_argument("--length", type=int, default=2048, help="tokens of a request (2048)")
    sub.add_argument(
        "--acceptance",
        type=float,
        nargs="+",
        default=[0.5, 0.6, 0.7, 0.8, 0.9],
        metavar="A",
        help="shares of drafts accepted",
    )
    sub.add_argument("--plain-ms", type=float, help="time of a step without drafts")
    sub.add_argument("--verify-ms", type=float, nargs="+", help="of a step with drafts: one time, or one for each K")
    sub.add_argument("--draft-ms", type=float, default=0.0, help="of making one draft (0)")
    sub.add_argument("--measure", action="store_true", help="load the models and measure these times")

    command("doctor", diagnose, "show what is installed and which kernels each operator uses")
    return parser


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="the folder of a transformers model, or a GGUF file")
    dtypes = ("auto", "float32", "bfloat16", "float16")
    parser.add_argument("--dtype", choices=dtypes, default="auto", help="of the weights (that of the checkpoint)")
    parser.add_argument("--device", help="such as npu or cpu; else the accelerator if there is one")


def add_drafting(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("drafts")
    group.add_argument("--method", choices=METHODS, help="else what the other options imply")
    group.add_argument("--draft-model", help="a smaller model with the same tokenizer: folder or GGUF file")
    group.add_argument("--draft-temperature", type=float, help="else that of the text")
    group.add_argument("--tree-topk", type=int, help="draft a tree: children a node")
    group.add_argument("--tree-depth", type=int, help="draft a tree: levels")
    group.add_argument("--medusa", help="safetensors file of Medusa heads")
    group.add_argument("--rule", choices=dict.fromkeys(CHAIN_RULES + TREE_RULES), help="how drafts are accepted")


def add_sampling(parser: argparse.ArgumentParser, max_tokens: int = 256) -> None:
    group = parser.add_argument_group("text")
    group.add_argument("--chat", action="store_true", help="put the prompt into the model's chat template")
    group.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (0)")
    group.add_argument("--top-k", type=int, default=0, help="keep this many likeliest tokens; 0 keeps all")
    group.add_argument("--top-p", type=float, default=1.0, help="keep the likeliest tokens of this probability")
    group.add_argument("--min-p", type=float, default=0.0, help="keep tokens this likely relative to the likeliest")
    group.add_argument("--seed", type=int, help="same seed, same text")
    group.add_argument("--max-tokens", type=int, default=max_tokens, help=f"at most ({max_tokens})")


def generate(args: argparse.Namespace) -> None:
    params, spec = sampling_params(args), speculative_config(args, args.k)
    text = read_prompts([] if args.prompt is None else [args.prompt])[0]
    prepare(args)
    tokenizer = load_tokenizer(args.model)
    prompt = encode(tokenizer, text, args.chat)
    llm = LLM(
        args.model,
        tokenizer=tokenizer,
        speculative_config=spec,
        tensor_parallel_size=num_processes(),
        dtype=args.dtype,
        device=args.device,
        max_num_seqs=1,
        max_model_len=len(prompt) + params.max_tokens,
        measure=True,
    )
    say = print if int(os.environ.get("RANK", "0")) == 0 else lambda *texts, **options: None
    for chunk in llm.stream([prompt], params):
        say(chunk.text, end="", flush=True)
    say(flush=True)
    say("\n".join(summary(llm.metrics)), file=sys.stderr)


def summary(metrics: Metrics) -> list[str]:
    seconds = dict(metrics.seconds)
    prefill = seconds.pop("prefill")
    total = sum(seconds.values())
    parts = ", ".join(f"{part} {share / total:.0%}" for part, share in seconds.items())
    lines = [
        f"{metrics.emitted} tokens in {total:.2f} s: {metrics.emitted / total:.1f} tokens/s, after {prefill:.2f} s of "
        "prefill",
        f"{metrics.tokens_per_step:.2f} tokens a step; time: {parts}",
    ]
    if any(metrics.drafted_at):
        lines.append("accepted by position: " + " ".join(f"{rate:.2f}" for rate in metrics.acceptance))
    return lines


def bench(args: argparse.Namespace) -> None:
    params, ks = sampling_params(args), [k for k in args.k if k != 0]
    specs = {0: None, **{k: speculative_config(args, k) for k in ks}}
    if args.repeats < 1:
        raise ValueError(f"--repeats must be 1 or more, got {args.repeats}")
    if args.png is not None:
        need("matplotlib", "plot", "--png")
    texts = read_prompts(args.prompt or [])
    prepare(args)
    tokenizer = load_tokenizer(args.model)
    if args.draft_model is not None:
        check_same_tokenizer(tokenizer, load_tokenizer(args.draft_model))
    prompts = [encode(tokenizer, text, args.chat) for text in texts]
    length = max(len(prompt) for prompt in prompts) + params.max_tokens
    options = {"max_num_seqs": len(prompts), "max_model_len": length, "compile": args.compile}
    llms = load_each(args, specs, tokenizer=tokenizer, **options)
    rows = sweep.sweep(llms, prompts, params, args.repeats)
    print("\n".join(sweep.table(rows)))
    if args.json is not None:
        options = {k: v for k, v in vars(args).items() if k not in ("command", "json", "png")}
        report = {"options": options, "machine": machine(), "rows": [dataclasses.asdict(row) for row in rows]}
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    if args.png is not None:
        drafts = args.draft_model or args.medusa or "prompt lookup"
        sweep.draw(rows, f"{Path(args.model).name}, drafts: {Path(drafts).name}", args.png)


def make_plan(args: argparse.Namespace) -> None:
    if min(args.devices, args.length, *args.k) < 1:
        raise ValueError("--devices, --length and -k must be 1 or more")
    if not all(0 <= acceptance <= 1 for acceptance in args.acceptance):
        raise ValueError(f"--acceptance must be from 0 to 1, got {args.acceptance}")
    if (args.plain_ms is None) != (args.verify_ms is None):
        raise ValueError("--plain-ms and --verify-ms go together: give both")
    if args.measure and args.plain_ms is not None:
        raise ValueError("--measure and --plain-ms exclude each other: give one of them")
    prepare(args)
    target = plan.footprint(args.model, args.devices, args.dtype)
    draft = None if args.draft_model is None else plan.footprint(args.draft_model, args.devices, args.dtype)
    memory = plan.device_memory() if args.device_memory is None else args.device_memory * 2**30
    lines = plan.memory_report(target, draft, args.devices, memory * args.memory_fraction, args.length)
    times = None
    if args.measure:
        specs = {0: None, **{k: SpeculativeConfig(k, draft_model=args.draft_model) for k in args.k}}
        times = plan.measured_times(load_each(args, specs, max_num_seqs=1, max_model_len=2 * plan.MEASURED))
    elif args.plain_ms is not None:
        seconds = [time / 1e3 for time in args.verify_ms]
        times = plan.given_times(args.plain_ms / 1e3, seconds, args.draft_ms / 1e3, args.k)
    print("\n".join([*lines, "", *plan.speed_report(args.k, args.acceptance, times)]))


def diagnose(args: argparse.Namespace) -> None:
    for line in doctor.report():
        print(line)


def sampling_params(args: argparse.Namespace) -> SamplingParams:
    names = ("temperature", "top_k", "top_p", "min_p", "seed", "max_tokens")
    return SamplingParams(**{name: getattr(args, name) for name in names})


def speculative_config(args: argparse.Namespace, k: int) -> SpeculativeConfig | None:
    if k == 0:
        return None
    names = ("method", "draft_model", "draft_temperature", "tree_topk", "tree_depth", "medusa", "rule")
    return SpeculativeConfig(num_speculative_tokens=k, **{name: getattr(args, name) for name in names})


def load_each(args: argparse.Namespace, specs: dict[int, SpeculativeConfig | None], **options: Any) -> dict[int, LLM]:
    """An `LLM` for each of the configurations; the models are loaded once."""
    device = default_device() if args.device is None else torch.device(args.device)
    target, draft = (
        None if path is None else load_model(path, args.dtype, device, shards=1)
        for path in (args.model, args.draft_model)
    )
    return {
        k: LLM(target, speculative_config=spec and dataclasses.replace(spec, draft_model=draft), **options)
        for k, spec in specs.items()
    }


def read_prompts(prompts: list[str]) -> list[str]:
    if not prompts:
        if sys.stdin.isatty():
            raise ValueError("there is no prompt: give --prompt, or text on standard input")
        prompts = [sys.stdin.read().removesuffix("\n")]
    if not all(prompts):
        raise ValueError("the prompt is empty: give --prompt, or text on standard input")
    return prompts


def encode(tokenizer: Any, text: str, chat: bool) -> list[int]:
    if tokenizer is None:
        raise ValueError("there is no tokenizer beside the model: put its files into the same folder")
    if not chat:
        return tokenizer(text)["input_ids"]
    if tokenizer.chat_template is None:
        raise ValueError("the model's tokenizer has no chat template: leave out --chat")
    messages = [{"role": "user", "content": text}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]


def prepare(args: argparse.Namespace) -> None:
    """Before any work: are the models there, and what reads them?"""
    need("transformers", "transformers", "a model")
    for path in (args.model, args.draft_model):
        if path is not None:
            model_source(path)
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()


def need(package: str, extra: str, purpose: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise ValueError(f"{purpose} needs {package}: pip install 'specdec_ops[{extra}]'")


def machine() -> dict[str, Any]:
    device = default_device()
    return {
        "device": "cpu" if device.type == "cpu" else torch.get_device_module(device).get_device_name(),
        "cpu": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "transformers": version("transformers"),
    }


if __name__ == "__main__":
    sys.exit(main())
