"""Attention "specdec" in transformers' own use of a model, and the page that describes it."""

import re
from pathlib import Path

import pytest
import torch
import transformers
from tiny_models import CONFIGS, make_model, random_prompts, similar_model

from specdec_ops.decode import SpeculativeDecoder
from specdec_ops.integrations.transformers import speculative_generate

# The name that transformers 4 knows, too.
pytestmark = pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning")

LENGTHS = [30, 17, 1]


@pytest.fixture(scope="module", params=CONFIGS)
def model(request):
    return make_model(request.param)


def padded(side: str) -> dict[str, torch.Tensor]:
    """Prompts and their attention mask, padded with a token that means something."""
    rows = [torch.tensor(prompt) for prompt in random_prompts(LENGTHS)]
    pad = torch.nn.utils.rnn.pad_sequence
    return {
        "input_ids": pad(rows, batch_first=True, padding_value=7, padding_side=side),
        "attention_mask": pad([torch.ones_like(row) for row in rows], batch_first=True, padding_side=side),
    }


def with_each(model, call):
    """What `call` gives with transformers' attention and with ours."""
    results = []
    for attention in ("eager", "specdec"):
        model.set_attn_implementation(attention)
        results.append(call())
    model.set_attn_implementation("eager")
    return results


@pytest.mark.parametrize("options", [{}, {"num_beams": 2}], ids=str)
def test_padded_batch(model, options):
    options = {"max_new_tokens": 24, "do_sample": False, "pad_token_id": 0, **options}
    expected, actual = with_each(model, lambda: model.generate(**padded("left"), **options))
    assert torch.equal(actual, expected)


@torch.no_grad()
def test_several_new_tokens_behind_a_context(model):
    ids, mask = padded("left").values()

    def logits():
        first = model(ids[:, :-5], attention_mask=mask[:, :-5], use_cache=True)
        return model(ids[:, -5:], attention_mask=mask, past_key_values=first.past_key_values).logits

    expected, actual = with_each(model, logits)
    seen = mask[:, -5:].bool()
    torch.testing.assert_close(actual[seen], expected[seen], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_logits(model, side):
    batch = padded(side)
    expected, actual = with_each(model, lambda: model(**batch, use_cache=False).logits)
    seen = batch["attention_mask"].bool()
    torch.testing.assert_close(actual[seen], expected[seen], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_sinks_of_half_precision():
    model = make_model("gpt_oss").bfloat16()
    batch = padded("left")
    expected, actual = with_each(model, lambda: model(**batch).logits)
    seen = batch["attention_mask"].bool()
    torch.testing.assert_close(actual[seen], expected[seen], rtol=0, atol=0.05 * expected.abs().max().item())
    prompt, options = batch["input_ids"][:1], {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    options["attention_mask"] = torch.ones_like(prompt)  # else transformers takes what looks like padding for it
    assert model.generate(prompt, custom_generate=speculative_generate, **options).shape == (1, LENGTHS[0] + 8)


@pytest.mark.parametrize(
    "options",
    [
        {"position_ids": torch.tensor([[0, 1, 2, 0, 1]]), "use_cache": False},
        {"attention_mask": torch.ones(1, 1, 5, 5)},
        {"past_key_values": "static"},
    ],
    ids=["packed sequences", "mask of its own", "static cache"],
)
def test_masks_that_are_not_served(options):
    model = make_model()
    model.set_attn_implementation("specdec")
    if "past_key_values" in options:
        options = {"past_key_values": transformers.StaticCache(config=model.config, max_cache_len=8)}
    with pytest.raises(ValueError, match=r"attention 'specdec'.*'sdpa'"):
        model(torch.tensor([[1, 2, 3, 4, 5]]), **options)


def test_a_model_that_the_decode_loop_has_taken():
    model = make_model()
    SpeculativeDecoder(model)
    with pytest.raises(RuntimeError, match="set_attn_implementation"):
        model(torch.tensor([[1, 2]]))
    model.set_attn_implementation("specdec")
    model(torch.tensor([[1, 2]]))


def test_the_page_runs_as_it_stands(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "transformers.md").read_text()
    model = make_model()
    model.save_pretrained(tmp_path)
    inputs = padded("left")
    expected = model.generate(**inputs, max_new_tokens=16, do_sample=False)
    names = {"AutoModelForCausalLM": transformers.AutoModelForCausalLM, "folder": tmp_path, "inputs": inputs}
    attention, lookup, *assistant = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    exec(attention, names)
    assert names["model"].config._attn_implementation == "specdec"
    assert torch.equal(names["text"], expected)
    exec(lookup, names)
    assert torch.equal(names["text"], expected)
    assert len(assistant) == 2  # before and after; transformers' assistants serve one request
    names |= {"inputs": {"input_ids": inputs["input_ids"][:1]}, "assistant": similar_model(model)}
    for example in assistant:
        exec(example, names)
        assert torch.equal(names["text"], expected[:1])
    assert names["assistant"].config._attn_implementation != "specdec_paged"  # given back
