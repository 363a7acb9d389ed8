"""What only the Ascend C kernels need: groups of requests on several cores, rounds of tokens, memory traffic."""

import pytest
import torch

import specdec_ops.reference as reference

from .simulator import device, needs_simulator, on_devices

pytestmark = needs_simulator


@on_devices
@pytest.mark.parametrize(("batch", "capacity"), [(1, 200), (31, 200), (32, 200), (33, 200), (70, 200), (70, 201)])
@pytest.mark.parametrize("width", [1, 63, 64, 65, 130])
def test_advance_by_groups_and_rounds(profile, seed, batch, capacity, width):
    generator = torch.Generator().manual_seed(batch + width)

    def draw(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator, dtype=torch.int32)

    state = [torch.randint(0, 99, (batch, capacity), generator=generator), draw(0, 90, batch), draw(0, 5, batch) == 0]
    tokens = torch.randint(0, 400, (batch, width), generator=generator)
    tokens[::4, width // 2] = -1
    rest = (tokens, draw(-1, 2 * width, batch), torch.tensor([3, 7]), draw(50, 230, batch))
    expected = [x.clone() for x in state]
    expected_root = reference.advance(*expected, *rest)
    with device(profile, seed) as simulated:
        root = simulated.advance(*state, *rest)
        (launch,) = simulated.launches()
    assert torch.equal(root, expected_root)
    assert all(torch.equal(a, b) for a, b in zip(state, expected, strict=True))
    assert len(launch["cores"]) == (-(-batch // 32) if capacity % 4 == 0 else 1)


def test_advance_writes_what_is_new():
    history, lengths = torch.zeros(4, 64, dtype=torch.int64), torch.full((4,), 9, dtype=torch.int32)
    finished, eos = torch.zeros(4, dtype=torch.bool), torch.tensor([], dtype=torch.int64)
    tokens, accepted = torch.ones(4, 50, dtype=torch.int64), torch.tensor([0, 1, 2, 3], dtype=torch.int32)
    with device("910B4", 0) as simulated:
        simulated.advance(history, lengths, finished, tokens, accepted, eos, torch.full((4,), 64, dtype=torch.int32))
        (launch,) = simulated.launches()
    assert lengths.tolist() == [10, 11, 12, 13]
    assert launch["gm_written"] == (1 + 2 + 3 + 4) * 8 + 4 * (4 + 1 + 8)  # tokens; lengths, flags and roots
    assert launch["gm_read"] == (1 + 2 + 3 + 4) * 8 + 4 * (4 + 4 + 4 + 1)


@pytest.mark.parametrize("batch", [1, 2048, 2049])
def test_adapt_in_pieces(batch):
    generator = torch.Generator().manual_seed(batch)
    rate = torch.rand(batch, generator=generator)
    drafted, accepted = (torch.randint(0, 9, (batch,), generator=generator, dtype=torch.int32) for _ in range(2))
    expected = rate.clone()
    reference.adapt_draft_length(expected, drafted, accepted)
    with device("910B4", 0) as simulated:
        simulated.adapt_draft_length(rate, drafted, accepted)
    torch.testing.assert_close(rate, expected)
