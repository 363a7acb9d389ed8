"""What the conformance suite must have run before this in the interpreter (layer A), so that small shapes and tests
left out as too large leave no hole."""

import pytest

pytest.importorskip("triton", reason="triton is not installed")

import launches

from specdec_ops.triton.verify import RECURSIVE, STRICT, TARGET_ONLY, TRAVERSAL, TYPICAL

FLOATS = {"*fp32", "*bf16", "*fp16"}


def launched(name):
    """Constants and parameter types of every launch of a kernel."""
    return [
        (dict(specialization.constants), dict(specialization.signature))
        for specialization, _ in launches.shown
        if specialization.name == name
    ]


def types(name, parameter):
    return {signature.get(parameter) for _, signature in launched(name)}


def test_every_kernel():
    assert launches.kernel_names() <= {specialization.name for specialization, _ in launches.shown}


def test_verification_by_every_rule():
    seen = {
        (constants["RULE"], "parents" in signature, "draft" in signature, signature["target"])
        for constants, signature in launched("verify_kernel")
    }
    chain = {(rule.value, False) for rule in (RECURSIVE, TRAVERSAL, STRICT, TYPICAL)}
    tree = {(rule.value, True) for rule in (TARGET_ONLY, RECURSIVE, TRAVERSAL, TYPICAL)}
    with_q = {RECURSIVE.value, TRAVERSAL.value}
    expected = {(rule, is_tree, False) for rule, is_tree in chain | tree}
    expected |= {(rule, is_tree, True) for rule, is_tree in chain | tree if rule in with_q}
    assert {(*case, dtype) for case in expected for dtype in FLOATS} <= seen


@pytest.mark.parametrize("kernel", ["chunk_statistics_kernel", "row_records_kernel"])
def test_distributions_of_every_dtype(kernel):
    assert types(kernel, "logits") == FLOATS


def test_filters_alone_and_together():
    filters = ("temperature", "top_k", "top_p", "min_p")
    seen = {tuple(name in signature for name in filters) for _, signature in launched("row_records_kernel")}
    alone = {tuple(name == other for other in filters) for name in filters}
    assert {(False,) * 4, (True,) * 4} | alone <= seen


def test_sampling_of_every_dtype():
    assert types("sample_kernel", "rows") == FLOATS
    assert types("sample_kernel", "uniforms") == {"*fp32", None}


def test_attention_of_every_dtype_and_option():
    assert types("tree_attention_kernel", "q") == FLOATS
    assert types("tree_attention_kernel", "k_cache") == {*FLOATS, "*i8"}
    assert types("merge_attention_kernel", "out_a") == FLOATS
    for option in ("mask", "depth", "sinks", "k_scale", "softcap", "window"):
        assert len(types("tree_attention_kernel", option)) == 2, f"{option} was always or never given"
    assert {constants["PER_TOKEN"] for constants, _ in launched("tree_attention_kernel")} == {True, False}


def test_cache_rows_of_every_width():
    assert types("append_kernel", "x") == {"*i8", "*i16", "*i32"}
    assert {str(constants["TYPE"]) for constants, _ in launched("rollback_kernel")} == {
        "int8",
        "int16",
        "int32",
        "int64",
    }
