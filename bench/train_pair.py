"""`python -m bench.train_pair DIR`: a byte-level target and draft, trained on the source of Python's standard library.

The target is a deep, narrow Llama of 7 million parameters; the draft has 0.4 million and one layer, because its step
costs what its layers cost. The draft learns from the target's distributions: first on the same source as the target,
while that is learning itself; then on text that the target wrote greedily.

Writes `DIR/target` and `DIR/draft`, transformers folders with a tokenizer, and `DIR/prompts.json`, the beginnings of
files that neither model has seen.
"""

import argparse
import json
import random
import sysconfig
import time
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from specdec_ops.config import DecoderConfig, SamplingParams
from specdec_ops.decode import SpeculativeDecoder

END = 256  # of a file; the other ids are bytes
TARGET: dict[str, Any] = {
    "hidden_size": 224,
    "intermediate_size": 576,
    "num_hidden_layers": 12,
    "num_attention_heads": 7,
}
DRAFT: dict[str, Any] = {"hidden_size": 192, "intermediate_size": 384, "num_hidden_layers": 1, "num_attention_heads": 6}
WINDOW = 256  # tokens of a training row
ROWS = 4  # of a batch
PROMPT = 200  # bytes
HELD_OUT = 20  # every so manyth file


def source_files() -> list[bytes]:
    """The standard library without its tests, in an order that does not tell where a file lay."""
    root, tests = Path(sysconfig.get_path("stdlib")), {"site-packages", "dist-packages", "test", "tests", "idle_test"}
    paths = [path for path in sorted(root.rglob("*.py")) if not tests & set(path.relative_to(root).parts)]
    random.Random(0).shuffle(paths)
    return [path.read_bytes() for path in paths]


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Of bytes: a vocabulary of 256 without a merge."""
    tokenizer = Tokenizer(models.BPE(vocab={char: byte for byte, char in bytes_to_unicode().items()}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")


def make_model(sizes: dict[str, Any]) -> LlamaForCausalLM:
    options: dict[str, Any] = {"vocab_size": END + 1, "max_position_embeddings": 2048, "tie_word_embeddings": True}
    return LlamaForCausalLM(LlamaConfig(**sizes, **options, bos_token_id=END, eos_token_id=END))


class Trainer:
    """AdamW with a warm-up and a cosine to zero."""

    def __init__(self, model: LlamaForCausalLM, rate: float, steps: int) -> None:
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), rate, betas=(0.9, 0.98), weight_decay=0.1)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, rate, steps, pct_start=0.1)

    def step(self, loss: Tensor) -> float:
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        return loss.item()


def divergence(draft_logits: Tensor, target_logits: Tensor) -> Tensor:
    """Of the draft's distributions from the target's, the mean over rows."""
    p, q = (logits.flatten(0, 1).log_softmax(-1) for logits in (target_logits, draft_logits))
    return functional.kl_div(q, p, log_target=True, reduction="batchmean")


def learn_source(target: LlamaForCausalLM, draft: LlamaForCausalLM, source: Tensor, steps: int) -> None:
    of_target, of_draft = Trainer(target, 2e-3, steps), Trainer(draft, 5e-3, steps)
    for step in range(steps):
        start = torch.randint(len(source) - WINDOW, (ROWS, 1))
        rows = source[start + torch.arange(WINDOW)]
        logits = target(input_ids=rows, use_cache=False).logits
        loss = of_target.step(functional.cross_entropy(logits[:, :-1].flatten(0, 1), rows[:, 1:].flatten()))
        distance = of_draft.step(divergence(draft(input_ids=rows, use_cache=False).logits, logits.detach()))
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step}: target's loss {loss:.3f} nats a byte, draft's divergence {distance:.3f}", flush=True)


@torch.no_grad()
def write(target: LlamaForCausalLM, source: Tensor, texts: int) -> Tensor:
    """What the target writes greedily after that many places of the source, `[texts, WINDOW]`."""
    decoder = SpeculativeDecoder(target, None, DecoderConfig(max_num_seqs=32, max_model_len=WINDOW))
    prompts = []
    for start in torch.randint(len(source) - WINDOW, (texts,)).tolist():
        prompts.append(source[start : start + WINDOW // 4].tolist())
    params = SamplingParams(temperature=0.0, max_tokens=WINDOW - WINDOW // 4, ignore_eos=True)
    requests = decoder.generate(prompts, params)
    target.set_attn_implementation("sdpa")
    return torch.tensor([request.prompt + request.tokens for request in requests])


def learn_target(draft: LlamaForCausalLM, target: LlamaForCausalLM, texts: Tensor, epochs: int) -> None:
    with torch.no_grad():
        logits = torch.cat([target(input_ids=rows, use_cache=False).logits for rows in texts.split(ROWS)])
    batches = len(texts) // ROWS
    of_draft = Trainer(draft, 2e-3, epochs * batches)
    for epoch in range(epochs):
        losses = []
        for rows in torch.randperm(len(texts))[: batches * ROWS].view(batches, ROWS):
            found = draft(input_ids=texts[rows], use_cache=False).logits
            losses.append(of_draft.step(divergence(found, logits[rows])))
        print(f"epoch {epoch}: draft's divergence {sum(losses) / len(losses):.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.train_pair", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=550, help=f"batches of {ROWS * WINDOW} bytes of source")
    parser.add_argument("--texts", type=int, default=256, help="of the target that the draft learns from")
    parser.add_argument("--epochs", type=int, default=8, help="over these texts")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    start = time.perf_counter(), time.process_time()

    files = source_files()
    seen = [file for i, file in enumerate(files) if i % HELD_OUT]
    source = torch.tensor([token for file in seen for token in (*file, END)])
    target, draft = make_model(TARGET), make_model(DRAFT)
    for name, model in (("target", target), ("draft", draft)):
        print(f"{name}: {sum(p.numel() for p in model.parameters()) / 1e6:.2f} million parameters")
    print(f"{len(source) / 1e6:.1f} million bytes of source")
    learn_source(target, draft, source, args.steps)
    learn_target(draft, target.eval(), write(target, source, args.texts), args.epochs)
    print(f"{time.perf_counter() - start[0]:.0f} s, {time.process_time() - start[1]:.0f} s of CPU time")

    tokenizer = make_tokenizer()
    for name, model in (("target", target), ("draft", draft)):
        model.save_pretrained(args.folder / name)
        tokenizer.save_pretrained(args.folder / name)
    prompts = [file[:PROMPT].decode("ascii") for file in files[::HELD_OUT] if len(file) >= PROMPT and file.isascii()]
    (args.folder / "prompts.json").write_text(json.dumps(prompts, indent=1) + "\n")


if __name__ == "__main__":
    main()
