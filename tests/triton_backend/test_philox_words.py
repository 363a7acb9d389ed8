"""Philox as a function of a kernel, on what the environment has: the interpreter (layer A) or native code (layer C)."""

import pytest

pytest.importorskip("triton", reason="triton is not installed")

import torch
import triton
import triton.language as tl
from ops.test_philox import KNOWN_ANSWERS

from specdec_ops.reference.philox import philox4x32_10
from specdec_ops.triton.philox import philox4x32_10 as philox_words
from specdec_ops.triton.runtime import launch


@triton.jit
def words_kernel(numbers, out, BLOCK: tl.constexpr):
    zero = tl.zeros([BLOCK], tl.int32)
    w0, w1, w2, w3 = philox_words(
        zero + tl.load(numbers),
        zero + tl.load(numbers + 1),
        zero + tl.load(numbers + 2),
        zero + tl.load(numbers + 3),
        tl.load(numbers + 4),
        tl.load(numbers + 5),
    )
    lane = tl.arange(0, BLOCK)
    tl.store(out + lane, w0)
    tl.store(out + BLOCK + lane, w1)
    tl.store(out + 2 * BLOCK + lane, w2)
    tl.store(out + 3 * BLOCK + lane, w3)


def _signed(words):
    return torch.tensor([word - (1 << 32) if word >= 1 << 31 else word for word in words], dtype=torch.int32)


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_philox_known_answers(counter, key, words):
    out = torch.zeros(4, 16, dtype=torch.int32)
    launch(words_kernel, 1, _signed(counter + key), out, BLOCK=16)
    assert philox4x32_10(counter, key) == words
    assert torch.equal(out, _signed(words)[:, None].expand(4, 16))
