"""A checkpoint from a GGUF file."""

import importlib.util

import pytest
from tiny_models import greedy, make_model, write_gguf

from specdec_ops.config import SamplingParams, SpeculativeConfig
from specdec_ops.llm import LLM
from specdec_ops.plan import footprint


def test_text_from_a_gguf_file(tmp_path):
    pytest.importorskip("gguf", reason="writing and reading GGUF files needs the package gguf")
    pytest.importorskip("accelerate", reason="transformers needs accelerate to read GGUF files")
    model, path = make_model(vocab_size=258), tmp_path / "tiny.gguf"
    write_gguf(path, model)
    spec = SpeculativeConfig(num_speculative_tokens=3, draft_model=str(path))
    llm = LLM(str(path), speculative_config=spec, device="cpu", max_num_seqs=1, max_model_len=64)
    prompt = "he said: hey"
    ids = llm.tokenizer(prompt)["input_ids"]
    assert 256 in ids and ids[-1] == 257
    (output,) = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=24, ignore_eos=True))
    (text,) = greedy(model, [ids], 24)
    assert output.token_ids == text and output.text == llm.tokenizer.decode(text, skip_special_tokens=True)
    assert llm.metrics.acceptance == [1, 1, 1]
    assert footprint(str(path)).weight_bytes == sum(parameter.nbytes for parameter in model.parameters())


def test_without_the_package_it_says_what_to_install(tmp_path, monkeypatch):
    path = tmp_path / "model.gguf"
    path.touch()
    find_spec = importlib.util.find_spec
    monkeypatch.setattr("specdec_ops.llm.find_spec", lambda name: None if name == "gguf" else find_spec(name))
    with pytest.raises(ValueError, match=r"model.gguf needs gguf: pip install 'specdec_ops\[gguf\]'"):
        LLM(str(path))
