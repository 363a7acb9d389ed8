"""The dispatcher finds the Triton kernels, and hands them their arguments as the schema says."""

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

import specdec_ops
import specdec_ops.reference as reference
from specdec_ops.devices import triton_kernel

CUDA = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
NAMES = [name for name in specdec_ops.__all__ if name != "check"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("key", ["CUDA", "PrivateUse1"])
def test_registered(name, key):
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"specdec::{name}", key)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels run compiled, not in the interpreter")
def test_called_by_the_dispatcher():
    import interpreter  # noqa: F401

    seeds, offsets = torch.tensor([1, 2]), torch.tensor([3, 4])
    uniforms = torch.ops.specdec.philox_uniform.default.redispatch(CUDA, seeds, offsets, 5, 1)
    assert torch.equal(uniforms, reference.philox_uniform(seeds, offsets, 5, 1))

    lens, shorter = torch.tensor([5, 6], dtype=torch.int32), torch.tensor([7, 2], dtype=torch.int32)
    torch.ops.specdec.kv_truncate.default.redispatch(CUDA, lens, shorter)
    assert lens.tolist() == [5, 2]

    with pytest.raises(ValueError, match=r"^new_lens: expected shape \[2\], got \[1\]"):
        torch.ops.specdec.kv_truncate.default.redispatch(CUDA, lens, shorter[:1])

    logits = torch.randn(2, 40, generator=torch.Generator().manual_seed(0))
    temperature = torch.tensor([0.5, 0.0])
    actual = torch.ops.specdec.sample.default.redispatch(CUDA, logits, torch.rand(2), temperature=temperature)
    assert actual[0][1] == logits[1].argmax()


def test_a_vocabulary_that_float32_does_not_count():
    logits = torch.empty(1, 2**24 + 1, dtype=torch.float16)
    with pytest.raises(ValueError, match=r"^vocabulary: expected at most 16777216, .* got 16777217"):
        triton_kernel("sample")(logits, torch.zeros(1))
