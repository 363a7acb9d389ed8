"""What only the Ascend C kernels need: splits over cores, borders of pieces in UB, memory traffic."""

import pytest
import torch
from torch import Tensor

import specdec_ops.reference as reference

from .simulator import device, needs_simulator, on_devices

pytestmark = needs_simulator

# Heads and size of a float32 row. Whole 32-byte lines; blocks of whole lines; neither; more than a piece in UB holds.
ROWS = [(2, 64), (1, 6), (3, 5), (4, 5000)]
BLOCK_SIZE = 4


def ints(values) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def paged(batch: int, max_blocks: int) -> Tensor:
    generator = torch.Generator().manual_seed(batch)
    return torch.randperm(batch * max_blocks, generator=generator).int().reshape(batch, max_blocks)


def numbers(*shape: int) -> Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)


# kv_append


@on_devices
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("strided", [False, True], ids=["dense", "strided"])
def test_append_moves_every_row_once(profile, seed, row, strided):
    sizes = [1, 17, 0, 5]
    heads, d = row
    nodes, table = sum(sizes), paged(len(sizes), 8)
    context, cu = ints([0, 6, 9, 8]), ints([0, *torch.tensor(sizes).cumsum(0).tolist()])
    fused = numbers(nodes, heads, 2 * d + 3)
    k, v = (fused[..., :d], fused[..., d : 2 * d]) if strided else (numbers(nodes, heads, d), -numbers(nodes, heads, d))
    caches = [torch.zeros(table.numel(), BLOCK_SIZE, heads, d) for _ in range(2)]
    expected = [cache.clone() for cache in caches]
    reference.kv_append(k, v, *expected, table, context, cu)
    with device(profile, seed) as simulated:
        simulated.kv_append(k, v, *caches, table, context, cu)
        (launch,) = simulated.launches()
    assert all(torch.equal(a, b) for a, b in zip(caches, expected, strict=True))
    rows = 2 * nodes * heads * d * 4
    assert launch["gm_written"] == rows
    tables = 4 * (table.numel() + context.numel() + cu.numel())  # a core reads them for keys and for values
    assert rows <= launch["gm_read"] <= rows + 2 * tables * len(launch["cores"])


def test_append_uses_cores_where_rows_are_lines():
    table, context, cu = paged(3, 8), ints([0, 0, 0]), ints([0, 7, 14, 21])
    for (heads, d), cores in zip(ROWS, [21, 3, 1], strict=False):
        k, cache = numbers(21, heads, d), torch.zeros(24, BLOCK_SIZE, heads, d)
        with device("910B4", 0) as simulated:
            simulated.kv_append(k, k, cache, cache.clone(), table, context, cu)
            (launch,) = simulated.launches()
        assert len(launch["cores"]) == cores


# kv_rollback


def rollback_inputs(batch: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Paths of all kinds: in place, moved, cut by num_accepted, none."""
    generator = torch.Generator().manual_seed(0)
    moved = torch.stack([torch.randperm(15, generator=generator)[:4].sort().values + 1 for _ in range(batch)])
    path = torch.cat([torch.zeros(batch, 1, dtype=torch.int64), moved], 1).int()
    path[::3] = torch.arange(5, dtype=torch.int32)
    num_accepted = torch.randint(-1, 6, (batch,), generator=generator, dtype=torch.int32)
    return paged(batch, 8), torch.arange(batch, dtype=torch.int32) % 11, num_accepted, path


def moved_rows(num_accepted: Tensor, path: Tensor) -> int:
    index = torch.arange(path.shape[1])
    return int(((path > index) & (index <= num_accepted[:, None])).sum())


@on_devices
@pytest.mark.parametrize("batch", [1, 3, 40])
def test_rollback_moves_every_row_once(profile, seed, batch):
    table, context, num_accepted, path = rollback_inputs(batch)
    shared = numbers(table.numel(), BLOCK_SIZE, 2, 3)  # two caches whose rows share lines
    caches = [numbers(table.numel(), BLOCK_SIZE, heads, d) for heads, d in ROWS for _ in range(2)]
    caches += [shared[:, :, 0], shared[:, :, 1]]
    expected, expected_context = [cache.clone() for cache in caches], context.clone()
    reference.kv_rollback(expected, table, expected_context, num_accepted, path)
    with device(profile, seed) as simulated:
        simulated.kv_rollback(caches, table, context, num_accepted, path)
        (launch,) = simulated.launches()
    assert torch.equal(context, expected_context)
    assert all(torch.equal(a, b) for a, b in zip(caches, expected, strict=True))
    rows = moved_rows(num_accepted, path) * sum(cache[0, 0].numel() * 4 for cache in caches)
    assert launch["gm_written"] == rows + 4 * batch
    # A core reads its requests' paths, and the blocks of a move, for each of its caches.
    assert rows <= launch["gm_read"] <= rows + 128 * batch * (len(launch["cores"]) + len(caches))


@on_devices
@pytest.mark.parametrize("num_caches", [64, 65, 130])
def test_more_caches_than_a_launch_takes(profile, seed, num_caches):
    table, context, num_accepted, path = rollback_inputs(5)
    caches = [numbers(table.numel(), BLOCK_SIZE, 8 if i % 3 else 5) for i in range(num_caches)]
    expected, expected_context = [cache.clone() for cache in caches], context.clone()
    reference.kv_rollback(expected, table, expected_context, num_accepted, path)
    with device(profile, seed) as simulated:
        simulated.kv_rollback(caches, table, context, num_accepted, path)
        assert len(simulated.launches()) == -(-num_caches // 64)
    assert torch.equal(context, expected_context)
    assert all(torch.equal(a, b) for a, b in zip(caches, expected, strict=True))


@pytest.mark.parametrize("with_path", [False, True], ids=["chain", "path in place"])
def test_rollback_of_rows_in_place_touches_no_cache(with_path):
    table, _, _, _ = rollback_inputs(9)
    context, num_accepted = ints([3] * 9), ints([4] * 9)
    path = torch.arange(5, dtype=torch.int32).repeat(9, 1) if with_path else None
    cache = numbers(table.numel(), BLOCK_SIZE, 64)
    with device("910B4", 0) as simulated:
        simulated.kv_rollback([cache], table, context, num_accepted, path)
        (launch,) = simulated.launches()
    assert context.tolist() == [8] * 9
    assert launch["gm_written"] == 4 * 9
    if not with_path:
        assert launch["gm_read"] == 8 * 9 and len(launch["cores"]) == 1


# kv_truncate, blocks_reserve, blocks_release


def test_truncate_in_pieces():
    context, new = torch.arange(8199, dtype=torch.int32) - 3, (torch.arange(8199, dtype=torch.int32) * 7) % 8199
    expected = context.clone()
    reference.kv_truncate(expected, new)
    with device("910B4", 0) as simulated:
        simulated.kv_truncate(context, new)
    assert torch.equal(context, expected)


# Rows of the table by the window of 8192 entries: many, a few with one left over, exactly one, more than one window.
@pytest.mark.parametrize(("batch", "max_blocks"), [(130, 63), (130, 65), (9, 2047), (3, 8192), (2, 8193), (2, 20000)])
def test_pools_of_any_width(batch, max_blocks):
    generator = torch.Generator().manual_seed(max_blocks)
    pages = batch * max_blocks
    table = torch.full((batch, max_blocks), -1, dtype=torch.int32)
    free, num_free = torch.randperm(pages, generator=generator).int(), ints([pages])
    context = torch.zeros(batch, dtype=torch.int32)
    expected = [x.clone() for x in (table, free, num_free)]
    with device("910B4", 0) as simulated:
        for kept in (max_blocks * 3 // 4, max_blocks // 3, 0):
            new = torch.randint(0, 2 * max_blocks + 4, (batch,), generator=generator, dtype=torch.int32)
            status = simulated.blocks_reserve(table, free, num_free, context, new, 2)
            assert torch.equal(status, reference.blocks_reserve(*expected, context, new, 2))
            context = torch.where(status == 0, context + new, context).clamp(max=2 * kept)
            table[0, max_blocks // 2] = expected[0][0, max_blocks // 2] = -7  # a hole in the middle is filled again
            simulated.blocks_release(table, free, num_free, context, 2)
            reference.blocks_release(*expected, context, 2)
            assert all(torch.equal(a, b) for a, b in zip((table, free, num_free), expected, strict=True))
