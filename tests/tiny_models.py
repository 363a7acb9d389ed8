"""Models with random weights, small enough to decode hundreds of tokens in a test."""

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "tie_word_embeddings": False,
    # Larger than usual, so that texts do not settle on one token.
    "initializer_range": 0.3,
}
WINDOW = 9
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {"head_dim": 16}),
    "mistral": ("MistralConfig", {"sliding_window": WINDOW, "head_dim": 8}),
    "gemma2": (
        "Gemma2Config",
        {"sliding_window": WINDOW, "head_dim": 16, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 2.0},
    ),
    "gemma3": ("Gemma3TextConfig", {"sliding_window": WINDOW, "head_dim": 16, "query_pre_attn_scalar": 16}),
    "gpt_oss": (
        "GptOssConfig",
        {
            "sliding_window": WINDOW,
            "head_dim": 16,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
}


def make_model(family: str = "llama", vocab_size: int = 61, seed: int = 0, **changes: Any) -> PreTrainedModel:
    config_class, options = CONFIGS[family]
    config = getattr(transformers, config_class)(**{**SIZES, "vocab_size": vocab_size, **options, **changes})
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()


def similar_model(model: PreTrainedModel, noise: float = 0.05, seed: int = 1) -> PreTrainedModel:
    """A draft model that often agrees: the same weights, disturbed."""
    copy = AutoModelForCausalLM.from_config(model.config).eval()
    generator = torch.Generator().manual_seed(seed)
    weights = model.state_dict()
    for name, tensor in weights.items():
        weights[name] = tensor + noise * tensor.std() * torch.randn(tensor.shape, generator=generator)
    copy.load_state_dict(weights)
    return copy


def byte_tokenizer(swap: bool = False) -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if swap:
        alphabet[65], alphabet[66] = alphabet[66], alphabet[65]
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def write_gguf(path: Path, model: PreTrainedModel) -> None:
    """A byte-level Llama as llama.cpp's converter would write it, with two tokens more: "he" and "hey"."""
    import gguf

    config, alphabet = model.config, sorted(pre_tokenizers.ByteLevel.alphabet())
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([*alphabet, "he", "hey"])
    writer.add_token_merges(["h e", "he y"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        for part, heads in {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.items():
            if part in name:  # there the numbers that are rotated together lie side by side
                tensor = tensor.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)
        writer.add_tensor(names.get_name(name, (".weight",)), tensor.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def greedy(model: PreTrainedModel, prompts: list[list[int]], max_tokens: int, **options: Any) -> list[list[int]]:
    """What transformers generates, prompt by prompt."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    texts = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            do_sample=False,
            pad_token_id=0,
            **options,
        )
        texts.append(out[0, len(prompt) :].tolist())
    model.set_attn_implementation(before)
    return texts


def random_prompts(lengths: list[int], vocab_size: int = 61, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(vocab_size, (n,), generator=generator).tolist() for n in lengths]


@torch.no_grad()
def save_medusa_heads(path: Any, model: PreTrainedModel, texts: list[list[int]], num_heads: int = 3) -> None:
    """Heads that have seen the texts: least squares from the hidden state at a token to the one `2 + head` later."""
    from safetensors.torch import save_file

    model.set_attn_implementation("eager")
    hidden = [model.model(torch.tensor([text])).last_hidden_state[0] for text in texts]
    size, vocab = model.config.hidden_size, model.config.vocab_size
    weights = {}
    for head in range(num_heads):
        ahead = 2 + head
        inputs = torch.cat([h[:-ahead] for h in hidden])
        labels = torch.cat([torch.tensor(text[ahead:]) for text in texts])
        solution = torch.linalg.lstsq(inputs, torch.nn.functional.one_hot(labels, vocab).float()).solution
        weights[f"{head}.0.linear.weight"] = torch.zeros(size, size)
        weights[f"{head}.0.linear.bias"] = torch.zeros(size)
        weights[f"{head}.1.weight"] = solution.T.contiguous()
    save_file(weights, path)
