"""The command `specdec`, run in this process on tiny models."""

import importlib.util
import io
import json
import re
import sys

import pytest
import torch
from tiny_models import byte_tokenizer, greedy, make_model, similar_model

from specdec_ops import devices, doctor, plan, sweep
from specdec_ops.cli import main
from specdec_ops.config import SamplingParams, SpeculativeConfig
from specdec_ops.llm import LLM

PROMPT = "hello, hello, hello"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    target = make_model(vocab_size=256)
    for name, model in {"target": target, "draft": similar_model(target)}.items():
        model.save_pretrained(root / name)
        byte_tokenizer().save_pretrained(root / name)
    config = root / "config_only"
    config.mkdir()
    (config / "config.json").write_bytes((root / "target" / "config.json").read_bytes())
    return root


def fails(capsys, *argv: str) -> str:
    """Runs a command that must fail; its one line."""
    capsys.readouterr()
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("specdec: error: ") and err.count("\n") == 1
    return err


@pytest.mark.parametrize("k", ["0", "3"])
@pytest.mark.parametrize("draft", [False, True])
def test_generate_streams_and_sums_up(folders, capsys, k, draft):
    options = ["--draft-model", str(folders / "draft")] if draft else []
    argv = ["generate", str(folders / "target"), "-k", k, "--prompt", PROMPT, "--max-tokens", "24", "--device", "cpu"]
    assert main(argv + options) == 0
    out, err = capsys.readouterr()
    tokenizer, model = byte_tokenizer(), make_model(vocab_size=256)
    (text,) = greedy(model, [tokenizer(PROMPT)["input_ids"]], 24)
    assert out == tokenizer.decode(text) + "\n"
    assert re.search(r"24 tokens in [\d.]+ s: [\d.]+ tokens/s, after [\d.]+ s of prefill", err)
    assert re.search(r"time: draft \d+%, verify \d+%, rest \d+%", err)
    accepted = re.search(r"accepted by position: (.*)", err)
    if k == "0":
        assert accepted is None and "1.00 tokens a step" in err
    else:
        assert accepted is not None and len(accepted[1].split()) == 3


def test_generate_samples_from_standard_input(folders, capsys, monkeypatch):
    def text(seed: str) -> str:
        monkeypatch.setattr(sys, "stdin", io.StringIO(PROMPT + "\n"))
        argv = ["generate", str(folders / "target"), "--temperature", "0.9", "--top-p", "0.95", "--min-p", "0.01"]
        assert main([*argv, "--seed", seed, "--max-tokens", "16", "--device", "cpu"]) == 0
        return capsys.readouterr().out

    assert text("1") == text("1") != text("2")


def test_generate_with_a_chat_template(folders, capsys, tmp_path):
    tokenizer, model = byte_tokenizer(), make_model(vocab_size=256)
    argv = ["generate", str(folders / "target"), "--prompt", "hi", "--chat", "--max-tokens", "8", "--device", "cpu"]
    assert "no chat template" in fails(capsys, *argv)
    tokenizer.chat_template = "{% for message in messages %}<{{ message['content'] }}>{% endfor %}"
    tokenizer.save_pretrained(tmp_path)
    model.save_pretrained(tmp_path)
    argv[1] = str(tmp_path)
    assert main(argv) == 0
    (text,) = greedy(model, [tokenizer("<hi>")["input_ids"]], 8)
    assert capsys.readouterr().out == tokenizer.decode(text) + "\n"


def test_bench_prints_a_table_and_writes_json(folders, capsys, tmp_path):
    argv = ["bench", str(folders / "target"), "--draft-model", str(folders / "draft"), "-k", "1", "3", "--repeats", "2"]
    report = tmp_path / "report.json"
    argv += ["--prompt", PROMPT, "--prompt", "x", "--max-tokens", "12", "--device", "cpu", "--json", str(report)]
    assert main(argv) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["K", "tokens/s", "tokens/step", "acceptance", "speed-up"]
    written = json.loads(report.read_text())
    assert [row["k"] for row in written["rows"]] == [int(line.split()[0]) for line in lines] == [0, 1, 3]
    plain, _, three = written["rows"]
    assert (plain["tokens_per_step"], plain["speedup"], plain["acceptance"]) == (1, 1, None)
    assert three["tokens_per_step"] > 1 and len(three["acceptance_at"]) == 3
    assert written["options"]["max_tokens"] == 12 and written["machine"]["torch"] == torch.__version__


def test_bench_compiles_by_a_flag(folders, monkeypatch, capsys):
    compiled, compile_with = [], torch.compile

    def without_inductor(function, **options):
        compiled.append(function.__self__.drafter.num_draft)
        return compile_with(function, backend="eager", **options)

    monkeypatch.setattr(torch, "compile", without_inductor)
    argv = ["bench", str(folders / "target"), "-k", "2", "--repeats", "1", "--prompt", PROMPT, "--max-tokens", "8"]
    assert main([*argv, "--device", "cpu"]) == 0 and compiled == []
    assert main([*argv, "--device", "cpu", "--compile"]) == 0 and compiled == [0, 2]


def test_sweep_takes_the_runs_in_turn_and_their_medians(monkeypatch):
    model = make_model()
    specs = {0: None, 2: SpeculativeConfig(num_speculative_tokens=2, draft_model=model)}
    llms = {k: LLM(model, speculative_config=spec, max_num_seqs=1, max_model_len=32) for k, spec in specs.items()}
    true_timed, order = sweep.timed, []
    seconds = iter([9.0, 9.0, 1.0, 0.5, 2.0, 0.5, 8.0, 1.0])  # the first pair sets up

    def timed(llm, prompts, params):
        order.append(llm.decoder.drafter.num_draft)
        return next(seconds), true_timed(llm, prompts, params)[1]

    monkeypatch.setattr(sweep, "timed", timed)
    plain, two = sweep.sweep(llms, [[1, 2, 3]], SamplingParams(temperature=0, max_tokens=12), repeats=3)
    assert order == [0, 2] * 4
    assert (plain.tokens_per_s, two.tokens_per_s) == (6, 24)  # 12 tokens in 2 and in 0.5 seconds
    assert (plain.speedup, two.speedup) == (1, 4)  # of 2, 4 and 8
    assert two.acceptance == 1 and two.tokens_per_step == 3


def test_bench_draws(folders, tmp_path):
    pytest.importorskip("matplotlib", reason="the picture needs matplotlib")
    argv = ["bench", str(folders / "target"), "-k", "2", "--repeats", "1", "--prompt", PROMPT, "--max-tokens", "8"]
    assert main([*argv, "--device", "cpu", "--png", str(tmp_path / "sweep.png")]) == 0
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")


def test_bench_without_matplotlib_fails_before_any_work(folders, capsys, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find_spec(name))
    error = fails(capsys, "bench", str(folders / "absent"), "--prompt", "x", "--png", "sweep.png")
    assert "--png needs matplotlib: pip install 'specdec_ops[plot]'" in error


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
@pytest.mark.parametrize("tied", [False, True])
def test_footprint_is_what_the_decoder_takes(tmp_path, family, tied):
    model = make_model(family, tie_word_embeddings=tied)
    model.config.save_pretrained(tmp_path)
    found = plan.footprint(str(tmp_path))
    llm = LLM(model, max_num_seqs=1, max_model_len=32)
    llm.generate([[1, 2]], SamplingParams(max_tokens=2))
    pool = llm.decoder.state.pool
    cache = sum(tensor.nbytes for tensor in llm.decoder.target.cache.tensors)
    assert found.weight_bytes == sum(parameter.nbytes for parameter in model.parameters())
    assert found.parameters == model.num_parameters()
    assert found.kv_bytes * pool.num_blocks * pool.block_size == cache
    halves = plan.footprint(str(tmp_path), dtype="bfloat16")
    assert (halves.weight_bytes * 2, halves.kv_bytes * 2) == (found.weight_bytes, found.kv_bytes)
    shared = plan.footprint(str(tmp_path), devices=2)
    assert shared.kv_bytes * 2 == found.kv_bytes
    assert found.weight_bytes / 2 < shared.weight_bytes < 0.6 * found.weight_bytes


def test_expected_tokens_and_break_even():
    assert plan.expected_tokens(0.8, 4) == pytest.approx((1 - 0.8**5) / (1 - 0.8))
    assert plan.expected_tokens(1.0, 4) == 5 and plan.expected_tokens(0.0, 4) == 1
    acceptance = plan.break_even(1.5, 3)
    assert acceptance is not None and plan.expected_tokens(acceptance, 3) == pytest.approx(1.5)
    assert plan.break_even(4.1, 3) is None


def test_plan_from_a_configuration_alone(folders, capsys):
    argv = ["plan", str(folders / "config_only"), "--draft-model", str(folders / "config_only"), "--devices", "2"]
    argv += ["--device-memory", "0.5", "--memory-fraction", "0.5", "--length", "1024", "-k", "1", "2"]
    argv += ["--acceptance", "0.5", "0.9"]
    assert main([*argv, "--plain-ms", "10", "--verify-ms", "11", "--draft-ms", "3.5"]) == 0
    out = capsys.readouterr().out
    found = plan.footprint(str(folders / "config_only"), devices=2)
    tokens = int((2**28 - 2 * found.weight_bytes) // (2 * found.kv_bytes))
    assert f"that is {tokens} tokens, {tokens // 1024} requests of 1024" in out
    # One draft: 14.5 ms for 1.5 and 1.9 tokens; two: 18 ms for 1.75 and 2.71 tokens.
    assert re.search(r"1 +14\.500 +1\.45 +a>0\.45 +1\.03 +1\.31\n +2 +18\.000 +1\.80 +a>0\.52 +0\.97 +1\.51\n", out)
    assert "a=0.5: best with K=1, 1.03 times as fast" in out and "a=0.9: best with K=2, 1.51 times as fast" in out
    assert main([*argv, "--plain-ms", "10", "--verify-ms", "19", "30"]) == 0
    out = capsys.readouterr().out
    assert "a=0.5: speculation will not pay: 0.79 times as fast at best (K=1)" in out
    assert main(argv) == 0
    assert "step times tell if it does" in capsys.readouterr().out


def test_plan_says_when_the_weights_do_not_fit(folders, capsys):
    assert main(["plan", str(folders / "config_only"), "--device-memory", "0.0001"]) == 0
    assert "the weights do not fit" in capsys.readouterr().out


def test_plan_measures(folders, capsys, monkeypatch):
    true_timed, seconds = sweep.timed, {0: 3.2, 2: 2.2}

    def timed(llm, prompts, params):
        return seconds[llm.decoder.drafter.num_draft], true_timed(llm, prompts, params)[1]

    monkeypatch.setattr(sweep, "timed", timed)
    target = str(folders / "target")  # its own draft: 32 tokens take 32 steps plainly, 11 with two drafts
    argv = ["plan", target, "--draft-model", target, "-k", "2", "--acceptance", "0.8", "--measure", "--device", "cpu"]
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert "plain decoding, whose step takes 100.000 ms" in out
    assert re.search(r"^ +2 +200\.000 +2\.00 +a>0\.62 +1\.22$", out, re.MULTILINE)


def test_doctor_tells_which_kernels_run_and_why(capsys, monkeypatch):
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert f"torch: {torch.__version__}" in out and "torch_npu: " in out and "CANN: " in out
    assert "native: all operators; its kernels are in this build" in out.split("on cpu")[1].split("on npu")[0]
    assert doctor.backend("verify_chain", "cpu")[0] == "native"
    key = "PrivateUse1"
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key("specdec::verify_chain", key)
    assert (doctor.backend("verify_chain", "npu")[0] == "none") == (not has_kernel)
    monkeypatch.setattr(torch._C, "_dispatch_has_kernel_for_dispatch_key", lambda name, key: key == "PrivateUse1")
    monkeypatch.setattr(doctor, "triton_serves", lambda name, key: name == "verify_tree")
    assert doctor.backend("verify_tree", "npu")[0] == "Triton"
    assert doctor.backend("verify_chain", "npu")[0] == "native"
    assert doctor.backend("verify_chain", "cuda") == (
        "none",
        "no native kernels: they are not in this build; triton is not installed",
    )


def test_doctor_finds_cann_where_the_build_does(tmp_path, monkeypatch):
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path / "absent"))
    line = f"CANN: not found, ASCEND_HOME_PATH names {tmp_path}/absent; its compiler bisheng: not found"
    assert line in doctor.report()
    bisheng = tmp_path / "aarch64-linux/ccec_compiler/bin/bisheng"
    bisheng.parent.mkdir(parents=True)
    bisheng.touch(0o755)
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    assert doctor.cann() == f"{tmp_path}; its compiler bisheng: {bisheng}"


@pytest.mark.parametrize("installed", [False, True])
def test_npu_kernels_that_cannot_be_loaded(installed, tmp_path, monkeypatch):
    """The library is there; torch_npu is absent, or cannot be imported, as where CANN's environment is not set."""
    monkeypatch.setattr(devices, "__file__", str(tmp_path / "devices.py"))
    monkeypatch.setattr(devices, "why_no_npu", None)
    monkeypatch.setattr(torch._C, "_dispatch_has_kernel_for_dispatch_key", lambda name, key: False)
    (tmp_path / "_npu.so").touch()
    if not installed:
        monkeypatch.setattr(devices.importlib.util, "find_spec", lambda name: None)
        devices.load_npu()
        assert "torch_npu is not installed" in doctor.backend("verify_chain", "npu")[1]
        return
    (tmp_path / "torch_npu.py").write_text("raise ImportError('libhccl.so: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.warns(UserWarning, match=r"does without its NPU kernels: .*ImportError: libhccl\.so"):
        devices.load_npu()
    assert "could not be loaded: ImportError: libhccl.so" in doctor.backend("verify_chain", "npu")[1]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["generate", "{}/absent", "--prompt", "x"], "there is no model at"),
        (["generate", "{}/target", "--draft-model", "{}/absent", "--prompt", "x"], "there is no model at"),
        (["generate", "{}/config_only", "--prompt", "x"], "no tokenizer beside the model"),
        (["generate", "{}/target", "--prompt", ""], "the prompt is empty"),
        (["generate", "{}/target", "--prompt", "x", "-k", "-1"], "num_speculative_tokens must be 1 or more"),
        (["generate", "{}/target", "--prompt", "x", "--top-p", "0"], "top_p must be above 0"),
        (["generate", "{}/target", "--prompt", "x", "--method", "medusa"], "needs the argument medusa"),
        (["generate", "{}/target", "--prompt", "x", "--device", "abacus"], "abacus"),
        (["bench", "{}/target", "--prompt", "x", "--repeats", "0"], "--repeats must be 1 or more"),
        (["plan", "{}/absent"], "there is no model at"),
        (["plan", "{}/config_only", "--devices", "3"], "2 key and value heads, which 3 devices cannot share evenly"),
        (["plan", "{}/config_only", "--plain-ms", "1"], "--plain-ms and --verify-ms go together"),
        (["plan", "{}/config_only", "-k", "0"], "must be 1 or more"),
        (["plan", "{}/config_only", "--acceptance", "1.5"], "--acceptance must be from 0 to 1"),
        (["plan", "{}/config_only", "--plain-ms", "1", "--verify-ms", "1", "--measure"], "exclude each other"),
        (["plan", "{}/config_only", "--plain-ms", "1", "--verify-ms", "1", "1"], "one verification time, or 6"),
    ],
)
def test_errors_are_one_line(folders, capsys, argv, message):
    assert message in fails(capsys, *(word.replace("{}", str(folders)) for word in argv))


def test_what_the_parser_refuses(capsys):
    for argv in (["generate"], ["dance"], ["generate", "x", "--rule", "hopeful"]):
        with pytest.raises(SystemExit) as end:
            main(argv)
        assert end.value.code == 2
