"""The fronts (`LLM`, transformers' `generate`) and what they refuse."""

import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch
import transformers
from tiny_models import byte_tokenizer, greedy, make_model, random_prompts, save_medusa_heads, similar_model

from specdec_ops.config import DecoderConfig, SamplingParams, SpeculativeConfig
from specdec_ops.decode import SpeculativeDecoder
from specdec_ops.drafters import DraftModel, DraftTree, MedusaHeads, PromptLookup
from specdec_ops.integrations.transformers import speculative_generate
from specdec_ops.llm import LLM, load_model

GREEDY = SamplingParams(temperature=0, max_tokens=12)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of a target, a draft, and a draft with another tokenizer."""
    target = make_model(vocab_size=256)
    models_and_tokenizers = {
        "target": (target, byte_tokenizer()),
        "draft": (similar_model(target), byte_tokenizer()),
        "other": (similar_model(target), byte_tokenizer(swap=True)),
    }
    root = tmp_path_factory.mktemp("models")
    for name, (model, tokenizer) in models_and_tokenizers.items():
        model.save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    save_medusa_heads(root / "medusa.safetensors", target, random_prompts([60], vocab_size=256))
    return root


@pytest.mark.parametrize(
    ("options", "drafter"),
    [
        ({}, PromptLookup),
        ({"draft_model": "draft"}, DraftModel),
        ({"draft_model": "draft", "tree_topk": 3, "tree_depth": 2}, DraftTree),
        ({"medusa": "medusa.safetensors"}, MedusaHeads),
    ],
)
def test_llm_from_folders(folders, options, drafter):
    options = {name: str(folders / value) if isinstance(value, str) else value for name, value in options.items()}
    spec = SpeculativeConfig(num_speculative_tokens=4, **options)
    llm = LLM(str(folders / "target"), speculative_config=spec, device="cpu", max_num_seqs=2, max_model_len=64)
    assert isinstance(llm.decoder.drafter, drafter)
    prompts = ["hello, world", "a", "grüße"]
    outputs = llm.generate(prompts, GREEDY)
    tokenizer = byte_tokenizer()
    ids = [tokenizer(prompt)["input_ids"] for prompt in prompts]
    expected = greedy(llm.decoder.target.model, ids, 12)
    assert [output.token_ids for output in outputs] == expected
    assert [output.text for output in outputs] == [tokenizer.decode(text) for text in expected]
    streamed = ["", "", ""]
    for chunk in llm.stream(prompts, GREEDY):
        streamed[chunk.prompt] += chunk.text
    assert streamed == [output.text for output in outputs]


def test_llm_takes_token_ids_and_one_prompt(folders):
    model = make_model()
    llm = LLM(model, max_num_seqs=1, max_model_len=32)
    assert llm.generate([1, 2, 3], GREEDY)[0].token_ids == greedy(model, [[1, 2, 3]], 12)[0]
    assert llm.generate(numpy.array([1, 2, 3]), GREEDY)[0].prompt_token_ids == [1, 2, 3]
    with pytest.raises(ValueError, match="no tokenizer"):
        llm.generate("text")
    with pytest.raises(ValueError, match="prompt 0 is empty"):
        llm.stream([[]])


@pytest.mark.parametrize("drafts", [0, 6])
@pytest.mark.parametrize("min_tokens", [0, 12])
@pytest.mark.parametrize("include", [False, True])
def test_stop_strings(drafts, min_tokens, include):
    model, tokenizer = make_model(vocab_size=256), byte_tokenizer()
    # The target's own weights: all drafts are accepted, so that steps run past a stop string.
    spec = SpeculativeConfig(drafts, draft_model=similar_model(model, noise=0.0)) if drafts else None
    llm = LLM(model, tokenizer=tokenizer, speculative_config=spec, max_num_seqs=1, max_model_len=64)
    prompts, stops = ["hello, world", "a", "a"], [("}q", "7.j", "Ij"), "1l", "absent"]
    expected = [
        (tokenizer.decode(text), text, "length") for text in greedy(model, [*map(tokenizer.encode, prompts)], 40)
    ]
    for i, stop in enumerate(["Ij" if min_tokens else "7.j", "1l"]):
        text, tokens, _ = expected[i]
        length = next(n for n in range(41) if stop in tokenizer.decode(tokens[:n]))
        expected[i] = text[: text.index(stop) + len(stop) * include], tokens[:length], "stop"
    options = {"min_tokens": min_tokens, "include_stop_str_in_output": include, "logprobs": True}
    params = [SamplingParams(temperature=0, max_tokens=40, stop=stop, **options) for stop in stops]
    outputs = llm.generate(prompts, params)
    assert [(output.text, output.token_ids, output.finish_reason) for output in outputs] == expected
    assert all(len(output.logprobs) == len(output.token_ids) for output in outputs)
    streamed = [["", []] for _ in prompts]
    for chunk in llm.stream(prompts, params):
        streamed[chunk.prompt][0] += chunk.text
        streamed[chunk.prompt][1] += chunk.token_ids
    assert [tuple(one) for one in streamed] == [one[:2] for one in expected]
    assert llm.decoder.free_blocks == llm.decoder.state.pool.num_free.item() == llm.decoder.state.pool.num_blocks


def test_stop_strings_need_texts():
    llm = LLM(make_model(), max_num_seqs=1, max_model_len=32)
    with pytest.raises(ValueError, match=r"stop: .* without a tokenizer"):
        llm.generate([1, 2], SamplingParams(stop="x"))
    with pytest.raises(ValueError, match="stop: expected no strings where there are no texts"):
        llm.decoder.generate([[1, 2]], SamplingParams(stop="x"))


def test_llm_takes_the_dict_of_vllm():
    def make(**spec):
        return LLM(make_model(), speculative_config=spec, max_num_seqs=1, max_model_len=32).decoder.drafter

    assert isinstance(make(model=make_model(), num_speculative_tokens=2, method="draft_model"), DraftModel)
    lookup = make(method="ngram", num_speculative_tokens=2, prompt_lookup_max=4, prompt_lookup_min=2)
    assert isinstance(lookup, PromptLookup) and (lookup.num_draft, lookup.min_n, lookup.max_n) == (2, 2, 4)
    llm = LLM(make_model(), speculative_config=SpeculativeConfig(2), rule="block", adaptive=True, max_model_len=32)
    assert llm.decoder.rule == "block" and llm.decoder.config.adaptive
    with pytest.raises(ValueError, match=r"has no quantization; its fields are num_speculative_tokens, "):
        make(num_speculative_tokens=2, quantization="fp8")


def test_the_package_offers_the_front_and_stays_light():
    program = """
import sys, specdec_ops
assert not {"transformers", "specdec_ops.llm", "specdec_ops.config"} & set(sys.modules)
from specdec_ops import LLM, SamplingParams, SpeculativeConfig
from specdec_ops import config, llm
assert (LLM, SamplingParams, SpeculativeConfig) == (llm.LLM, config.SamplingParams, config.SpeculativeConfig)
assert specdec_ops.__version__[0].isdigit() and not hasattr(specdec_ops, "absent")
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[1])


@pytest.mark.parametrize("drafter", [None, PromptLookup(3)])
def test_custom_generate(drafter):
    model = make_model()
    prompts = random_prompts([9, 4])
    ids = torch.tensor([prompts[0], [0] * 5 + prompts[1]])
    mask = torch.tensor([[1] * 9, [0] * 5 + [1] * 4])
    (stop,) = {text[5] for text in greedy(model, prompts[:1], 8)}
    options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0, "eos_token_id": stop}
    expected = model.generate(ids, attention_mask=mask, **options)
    chunks = []
    actual = model.generate(
        ids,
        attention_mask=mask,
        custom_generate=speculative_generate,
        drafter=drafter,
        on_tokens=chunks.append,
        **options,
    )
    assert torch.equal(actual, expected)
    streamed = [token for chunk in chunks if chunk.request.index == 0 for token in chunk.tokens]
    assert expected[0, 9:].tolist() == streamed + [0] * (expected.shape[1] - 9 - len(streamed))
    assert model.config._attn_implementation == "eager"
    torch.manual_seed(1)
    sampled = model.generate(
        ids[:1], attention_mask=mask[:1], custom_generate=speculative_generate, drafter=drafter, do_sample=True,
        top_k=5, min_new_tokens=3, max_new_tokens=6, pad_token_id=0, eos_token_id=stop,
    )  # fmt: skip
    assert 12 <= sampled.shape[1] <= 15


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"num_beams": 2}, "beam search"),
        ({"repetition_penalty": 1.5}, "RepetitionPenaltyLogitsProcessor"),
        ({"max_time": 5.0}, "MaxTimeCriteria"),
        ({"return_dict_in_generate": True}, "return_dict_in_generate"),
    ],
)
def test_custom_generate_names_what_it_does_not_support(options, named):
    with pytest.raises(ValueError, match=named):
        make_model().generate(
            torch.tensor([[1, 2]]), custom_generate=speculative_generate, max_new_tokens=4, pad_token_id=0, **options
        )


def test_custom_generate_names_the_length_that_is_too_long():
    with pytest.raises(ValueError, match=r"max_length=514, .*max_position_embeddings=512; lower it"):
        make_model().generate(
            torch.tensor([[1, 2]]), custom_generate=speculative_generate, max_new_tokens=512, pad_token_id=0
        )


IDS = torch.tensor([[5, 6, 7, 8], [9, 10, 0, 0]])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (
            {"attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])},
            "padding on the left .* tokenizer.padding_side = 'left'",
        ),
        ({"attention_mask": torch.tensor([[0, 1, 0, 1], [1, 1, 1, 1]])}, "padding on the left"),
        ({"attention_mask": torch.ones(2, 1, 4, 4)}, r"expected \[2, 4\], the shape of input_ids, got \[2, 1, 4, 4\]"),
        ({"position_ids": torch.tensor([[0, 1, 2, 2]] * 2)}, "position_ids: expected 0, 1"),
        ({"inputs_embeds": torch.zeros(2, 4, 32)}, "does not support inputs_embeds"),
        ({"pixel_values": torch.zeros(2, 3)}, "does not support pixel_values"),
    ],
)
def test_custom_generate_refuses_inputs_that_it_would_lose(inputs, message):
    options = transformers.GenerationConfig(max_length=8, num_beams=1)
    with pytest.raises(ValueError, match=message):
        speculative_generate(make_model(), IDS, generation_config=options, **inputs)


def test_custom_generate_takes_what_generate_adds_and_neutral_values():
    model, mask = make_model(), torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "attention_mask": mask}
    expected = model.generate(IDS.flip(1), **options)
    positions = torch.tensor([[0, 1, 2, 3], [1, 1, 0, 1]])
    actual = model.generate(
        IDS.flip(1), custom_generate=speculative_generate, position_ids=positions, inputs_embeds=None,
        output_attentions=False, **options,
    )  # fmt: skip
    assert torch.equal(actual, expected)


# Bad input


def decoder(**options) -> SpeculativeDecoder:
    return SpeculativeDecoder(make_model(), None, DecoderConfig(**{"max_num_seqs": 2, "max_model_len": 32, **options}))


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([], {}, "prompt 1 is empty"),
        ([1, 61], {}, "token ids outside 0 to 60"),
        ([-1], {}, "token ids outside 0 to 60"),
        ([1] * 20, {}, r"20 tokens and max_tokens=16, together more than max_model_len=32; lower max_tokens or raise"),
        ([1] * 9, {"num_blocks": 1}, "needs 2 pages of 16 tokens and the cache has num_blocks=1; raise num_blocks"),
    ],
)
def test_prompts_that_cannot_be_served(prompt, options, message):
    with pytest.raises(ValueError, match=message):
        decoder(**options).stream([[1], prompt] if "num_blocks" not in options else [prompt], SamplingParams())


def test_parameters_that_do_not_fit_the_prompts():
    with pytest.raises(ValueError, match="one SamplingParams, or 2, one a prompt; got 1"):
        decoder().stream([[1], [2]], [SamplingParams()])
    with pytest.raises(ValueError, match="17 stop tokens; give at most 16"):
        decoder().stream([[1]], SamplingParams(stop_token_ids=range(17)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, "temperature must be 0"),
        ({"temperature": float("nan")}, "temperature must be 0"),
        ({"top_k": -2}, "top_k must be"),
        ({"top_p": 0.0}, "top_p must be"),
        ({"min_p": 1.5}, "min_p must be"),
        ({"max_tokens": 0}, "max_tokens must be"),
        ({"min_tokens": 17}, "min_tokens must be from 0 to max_tokens"),
        ({"seed": 2**63}, "seed must fit"),
        ({"max_tokens": 2.5}, "max_tokens must be an integer, got 2.5"),
        ({"max_tokens": None}, "max_tokens must be an integer, got None"),
        ({"stop_token_ids": [1.5]}, "stop_token_ids must be integers"),
        ({"stop": ["x", ""]}, "stop must be strings that are not empty"),
        ({"stop": [1]}, "stop must be strings"),
        ({"logprobs": 5}, "logprobs must be True or False, got 5"),
    ],
)
def test_bad_sampling_params(options, message):
    with pytest.raises(ValueError, match=message):
        SamplingParams(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_speculative_tokens": 0}, "num_speculative_tokens must be 1 or more"),
        ({"draft_model": "x", "medusa": "y"}, "draft_model and medusa exclude each other"),
        ({"draft_temperature": 0.5}, "draft_temperature is for chains of a draft model"),
        ({"draft_model": "x", "tree_topk": 2, "tree_depth": 2, "draft_temperature": 0.5}, "draft_temperature is for"),
        ({"method": "ngram", "medusa": "y"}, "'ngram' and medusa exclude each other"),
        ({"method": "medusa"}, "method 'medusa' needs the argument medusa"),
        ({"method": "eagle9"}, "unknown method 'eagle9'"),
        ({"tree_topk": 2}, "tree_topk and tree_depth go together"),
        ({"tree_topk": 2, "tree_depth": 2}, "need a draft model"),
        ({"draft_model": "x", "tree_topk": 1, "tree_depth": 2}, "has 2 drafts; num_speculative_tokens=3"),
        ({"prompt_lookup_min": 4}, "prompt_lookup_min <= prompt_lookup_max"),
        ({"draft_model": "x", "tree_topk": 2.0, "tree_depth": 2}, "tree_topk must be an integer, got 2.0"),
    ],
)
def test_bad_speculative_config(options, message):
    with pytest.raises(ValueError, match=message):
        SpeculativeConfig(**{"num_speculative_tokens": 3, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs must be 1 or more"),
        ({"num_blocks": 0}, "num_blocks must be 1 or more"),
        ({"num_blocks": -1}, "num_blocks must be 1 or more"),
        ({"block_size": 16.0}, "block_size must be an integer, got 16.0"),
        ({"max_model_len": 513}, "max_model_len=513 is more than the target has .* max_position_embeddings=512"),
        ({"rule": "hopeful"}, "unknown rule 'hopeful'"),
        ({"rule": "recursive"}, "'recursive' is not one for the chain"),
        ({"compile": True, "measure": True}, "compile and measure exclude each other"),
    ],
)
def test_bad_decoder_config(options, message):
    with pytest.raises(ValueError, match=message):
        decoder(**options)


def test_rules_and_adaptive_lengths_that_do_not_suit_the_drafter():
    model = make_model()
    tree = DraftTree(model, 4, topk=2, depth=2)
    with pytest.raises(ValueError, match="'block' is not one for the tree"):
        SpeculativeDecoder(model, tree, DecoderConfig(rule="block"))
    with pytest.raises(ValueError, match="adaptive draft length and a drafter of trees"):
        SpeculativeDecoder(model, tree, DecoderConfig(adaptive=True))


def test_a_tree_wider_than_the_vocabulary():
    with pytest.raises(ValueError, match="topk=62 is more than the draft model's vocabulary of 61"):
        DraftTree(make_model(), 4, topk=62, depth=1)


def test_the_length_of_a_model_is_the_default_and_scaled_rope_has_no_limit():
    assert SpeculativeDecoder(make_model()).max_model_len == 512
    assert SpeculativeDecoder(make_model(max_position_embeddings=4096)).max_model_len == 2048
    rope = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    scaled = make_model(rope_scaling=rope, rope_parameters=rope)
    assert SpeculativeDecoder(scaled, None, DecoderConfig(max_model_len=513)).max_model_len == 513


def test_draft_and_target_with_different_tokenizers(folders):
    spec = SpeculativeConfig(num_speculative_tokens=2, draft_model=str(folders / "other"))
    with pytest.raises(ValueError, match=r"different tokenizers: 4 entries differ, such as .*target's family"):
        LLM(str(folders / "target"), speculative_config=spec, device="cpu")


def test_models_that_cannot_be_loaded(tmp_path):
    with pytest.raises(ValueError, match="no model at"):
        LLM(str(tmp_path / "absent"))
    with pytest.raises(ValueError, match=r"start the program with `torchrun --nproc-per-node 2`"):
        LLM(make_model(), tensor_parallel_size=2)


def test_processes_that_cannot_share_a_model(folders):
    with pytest.raises(ValueError, match="2 key and value heads, which 3 devices cannot share evenly"):
        load_model(folders / "target", "auto", torch.device("cpu"), shards=3)


def test_models_that_cannot_be_used():
    def refuse(model, message):
        with pytest.raises(ValueError, match=message):
            SpeculativeDecoder(model)

    tiny = {"hidden_size": 16, "num_hidden_layers": 1, "vocab_size": 11, "num_attention_heads": 2}
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    refuse(make_model(rope_scaling=dynamic, rope_parameters=dynamic), "RoPE type 'dynamic'")
    refuse(make_model().train(), r"call model.eval\(\)")
    mamba = transformers.MambaConfig(**tiny, state_size=4)
    refuse(transformers.AutoModelForCausalLM.from_config(mamba).eval(), "MambaForCausalLM cannot be replaced")
    t5 = transformers.T5Config(d_model=16, d_ff=16, num_layers=1, num_heads=2, vocab_size=11, d_kv=8)
    refuse(transformers.T5ForConditionalGeneration(t5).eval(), "encoder-decoder")


def test_longrope_warns():
    rope = {"rope_type": "longrope", "factor": 2.0, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    rope |= {"rope_theta": 10000.0, "original_max_position_embeddings": 256}
    model = make_model(rope_scaling=rope, rope_parameters=rope)
    with pytest.warns(UserWarning, match="longrope"):
        SpeculativeDecoder(model)


def test_medusa_files_and_choices_that_do_not_fit(folders, tmp_path):
    with pytest.raises(ValueError, match=r"4 levels deep and .* has 3 heads"):
        MedusaHeads(folders / "medusa.safetensors", choices=[(0,), (0, 0), (0, 0, 0), (0, 0, 0, 0)])
    with pytest.raises(ValueError, match="parents of choices"):
        MedusaHeads(folders / "medusa.safetensors", choices=[(0,), (1, 0)])
    with pytest.raises(ValueError, match="exclude each other"):
        MedusaHeads(folders / "medusa.safetensors")
    with pytest.raises(ValueError, match="holds no Medusa heads"):
        MedusaHeads(folders / "target" / "model.safetensors", 3)
    for choices in ([(256,)], [(0,), (0, -1)]):
        with pytest.raises(ValueError, match=r"expected ranks from 0 to 255, as the heads of .* know 256 tokens"):
            MedusaHeads(folders / "medusa.safetensors", choices=choices)
    with pytest.raises(ValueError, match="made for a hidden size of 32, and the target has 48"):
        SpeculativeDecoder(make_model(hidden_size=48), MedusaHeads(folders / "medusa.safetensors", 3))


def test_a_target_that_gives_nan_is_named():
    model = make_model()
    model.get_output_embeddings().weight.data[3] = torch.nan
    with pytest.raises(RuntimeError, match="prompt 0: the target's logits hold NaN"):
        SpeculativeDecoder(model, None, DecoderConfig(max_model_len=32)).generate([[1, 2]])
