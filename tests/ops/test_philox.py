import pytest
import torch
from backends import without_reference

import specdec_ops
from specdec_ops.reference.philox import philox4x32_10

KNOWN_ANSWERS = [  # counter, key, words: Random123's kat_vectors
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def _int64(low: int, high: int) -> int:
    value = low | high << 32
    return value - (1 << 64) if value >= 1 << 63 else value


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_known_answers_of_the_reference(counter, key, words):
    assert philox4x32_10(counter, key) == words


def test_known_answer(backend):
    seeds = torch.tensor([0], device=backend.device)
    expected = [(word >> 8) * 2.0**-24 for word in KNOWN_ANSWERS[0][2]]
    assert backend.philox_uniform(seeds, seeds.clone(), 4, 0).tolist() == [expected]


def test_equals_the_reference_bit_for_bit(backend):
    seeds = torch.tensor([0, 1, -1, _int64(0xA4093822, 0x299F31D0)], device=backend.device)
    offsets = torch.tensor([0, 7, (1 << 40) + 3, _int64(0x243F6A88, 0x85A308D3)], device=backend.device)
    for n, stream in [(1, 0), (6, 3), (129, 0xFFFFFFFF)]:
        expected = specdec_ops.reference.philox_uniform(seeds, offsets, n, stream)
        actual = backend.philox_uniform(seeds, offsets, n, stream)
        assert torch.equal(actual, expected)
        assert actual.min() >= 0 and actual.max() < 1


def test_empty(backend):
    none = torch.empty(0, dtype=torch.int64, device=backend.device)
    assert backend.philox_uniform(none, none, 3, 0).shape == (0, 3)


@without_reference
def test_bad_arguments(backend):
    seeds = torch.zeros(2, dtype=torch.int64, device=backend.device)
    with pytest.raises(ValueError, match=r"offsets: expected shape \[2\], got \[4\]"):
        backend.philox_uniform(seeds, torch.cat([seeds, seeds]), 1, 0)
    with pytest.raises(ValueError, match="seeds: expected dtype int64, got int32"):
        backend.philox_uniform(seeds.int(), seeds, 1, 0)
    with pytest.raises(ValueError, match="stream: expected 0 to 4294967295, got -1"):
        backend.philox_uniform(seeds, seeds, 1, -1)


def test_opcheck_and_compile():
    seeds, offsets = torch.arange(3), torch.arange(3)
    torch.library.opcheck(torch.ops.specdec.philox_uniform, (seeds, offsets, 5, 1))
    compiled = torch.compile(
        lambda s, o: specdec_ops.philox_uniform(s, o, 5, 1) * 2, fullgraph=True, backend="aot_eager"
    )
    assert torch.equal(compiled(seeds, offsets), specdec_ops.philox_uniform(seeds, offsets, 5, 1) * 2)
