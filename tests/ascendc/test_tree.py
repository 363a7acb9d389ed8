"""What only the Ascend C kernels need: splits over cores, borders of pieces in UB."""

import pytest
import torch
from torch import Tensor

import specdec_ops.reference as reference

from .simulator import device, needs_simulator, on_devices

pytestmark = needs_simulator


def random_tree(size: int, generator: torch.Generator) -> list[int]:
    return [-1] + [int(torch.randint(max(0, i - 9), i, (), generator=generator)) for i in range(1, size)]


def same(actual: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> bool:
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


@on_devices
@pytest.mark.parametrize("sizes", [[1], [7], [8], [9, 0, 1], [40 * 8], [40 * 8 + 1], [61] * 12, [1000]])
def test_mask_rows_are_split_over_cores(profile, seed, sizes):
    generator = torch.Generator().manual_seed(len(sizes))
    parents = torch.tensor([p for size in sizes for p in random_tree(size, generator)[:size]], dtype=torch.int32)
    cu = torch.tensor([sum(sizes[:b]) for b in range(len(sizes) + 1)], dtype=torch.int32)
    with device(profile, seed) as simulated:
        actual = simulated.tree_mask(parents, cu, max(sizes))
        (launch,) = simulated.launches()
    assert same(actual, reference.tree_mask(parents, cu, max(sizes)))
    assert launch["gm_written"] == sum(x.numel() * x.element_size() for x in actual)


def test_mask_rows_of_a_core_come_in_tiles():
    """Ten rows a core, of which eight fit into UB."""
    sizes, max_nodes = [250, 3, 147], 64 * 1024
    generator = torch.Generator().manual_seed(0)
    parents = torch.tensor([p for size in sizes for p in random_tree(size, generator)], dtype=torch.int32)
    cu = torch.tensor([0, 250, 253, 400], dtype=torch.int32)
    with device("910B4", 0) as simulated:
        assert same(simulated.tree_mask(parents, cu, max_nodes), reference.tree_mask(parents, cu, max_nodes))


@pytest.mark.parametrize("max_nodes", [64 * 8192, 64 * 8192 + 1])
def test_mask_rows_longer_than_ub(max_nodes):
    parents = torch.tensor([-1, 0, 1, -1, 0], dtype=torch.int32)
    cu = torch.tensor([0, 3, 5], dtype=torch.int32)
    with device("910B4", 0) as simulated:
        assert same(simulated.tree_mask(parents, cu, max_nodes), reference.tree_mask(parents, cu, max_nodes))


@on_devices
@pytest.mark.parametrize(
    ("batch", "size", "num_nodes"), [(1, 64, 9), (50, 65, 8), (300, 5, 3), (3, 4096, 60), (2, 9, 50)]
)
def test_select_packs_what_all_cores_chose(profile, seed, batch, size, num_nodes):
    generator = torch.Generator().manual_seed(size)
    tokens = torch.randint(-1, 50, (batch, size), generator=generator)  # some requests keep fewer nodes
    scores = -torch.randint(0, 40, (batch, size), generator=generator) / 8  # many ties
    scores[torch.rand(batch, size, generator=generator) < 0.1] = float("-inf")
    parents = torch.tensor([random_tree(size, generator) for _ in range(batch)], dtype=torch.int32)
    with device(profile, seed) as simulated:
        actual = simulated.tree_select(tokens, scores, parents, num_nodes)
    assert same(actual, reference.tree_select(tokens, scores, parents, num_nodes))


def test_select_says_how_many_candidates_fit():
    tokens, scores = torch.zeros(1, 4097, dtype=torch.int64), torch.zeros(1, 4097)
    with device("910B4", 0) as simulated, pytest.raises(ValueError, match="expected 1 to 4096, got 4097"):
        simulated.tree_select(tokens, scores, tokens.int(), 3)
