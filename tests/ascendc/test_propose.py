"""What only the Ascend C kernel needs: parts of a history on several cores, borders of pieces in UB, memory traffic."""

import pytest
import torch
from torch import Tensor

import specdec_ops

from .simulator import device, needs_simulator, on_devices

pytestmark = needs_simulator


def check(profile: str, seed: int, history: Tensor, lengths: Tensor, **limits: int) -> tuple[Tensor, dict]:
    with device(profile, seed) as simulated:
        actual = simulated.ngram_propose(history, lengths, **limits)
        (launch,) = simulated.launches()
    expected = specdec_ops.ngram_propose(history, lengths, **limits)  # itself compared with the reference
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))
    return actual[1], launch


@on_devices
@pytest.mark.parametrize("length", [2, 31, 32, 33, 1024, 1025, 2048, 2049, 2050, 9000])
@pytest.mark.parametrize("kinds", [2, 300])
def test_histories_around_the_size_of_a_piece(profile, seed, length, kinds):
    generator = torch.Generator().manual_seed(length)
    history = torch.randint(0, kinds, (3, 9001), generator=generator) + (1 << 40)
    lengths = torch.tensor([length, max(0, length - 7), length + 1], dtype=torch.int32)
    check(profile, seed, history, lengths, min_n=1, max_n=5, num_draft=3)


@pytest.mark.parametrize("start", [2040, 2047, 2048, 5000])
def test_a_long_match_across_pieces_and_parts(start):
    """The final 1500 tokens stand once before, over the borders of pieces; halves of tokens alone do not match."""
    history = torch.arange(12_000)[None] + (torch.arange(12_000)[None] << 32)
    history[0, -1500:] = history[0, start : start + 1500]
    history[0, 100] = history[0, -1] % (1 << 32)  # only the low half of the last token
    lengths = torch.tensor([12_000], dtype=torch.int32)
    found, _ = check("910B1", 0, history, lengths, min_n=2, max_n=2**31 - 1, num_draft=9)
    assert found.item() == 9


@on_devices
@pytest.mark.parametrize("batch", [1, 7, 8, 9, 50])
def test_every_batch_has_its_parts(profile, seed, batch):
    generator = torch.Generator().manual_seed(batch)
    history = torch.randint(0, 500, (batch, 5000), generator=generator)
    lengths = torch.randint(-1, 5002, (batch,), generator=generator, dtype=torch.int32)
    check(profile, seed, history, lengths, min_n=1, max_n=3, num_draft=5)


def test_a_history_is_read_once():
    generator = torch.Generator().manual_seed(0)
    history = torch.randperm(40_000, generator=generator)[None]
    history[0, 777] = history[0, -1]
    lengths = torch.tensor([40_000], dtype=torch.int32)
    found, launch = check("910B4", 0, history, lengths, min_n=1, max_n=4, num_draft=4)
    parts = len(launch["cores"])
    assert found.item() == 4 and parts == 20
    assert 40_000 * 8 <= launch["gm_read"] <= 40_000 * 8 + parts * (1024 * 8 + 256)  # and the end for each part
