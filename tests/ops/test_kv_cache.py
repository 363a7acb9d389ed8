import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch
from backends import without_reference
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import specdec_ops
import specdec_ops.reference as reference

SETTINGS = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.float64, torch.bool]
LENGTHS = st.integers(-3, 40)


def ints(values, device="cpu") -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def on(backend, *tensors: Tensor) -> list[Tensor]:
    return [tensor.to(backend.device) for tensor in tensors]


def filled(*shape: int, dtype=torch.float32) -> Tensor:
    """Distinct bytes as far as the dtype can hold them."""
    values = torch.arange(torch.Size(shape).numel()).reshape(shape)
    return (values % 2 == 1) if dtype == torch.bool else (values % 251 - 125).to(dtype)


def same_bytes(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.cpu().contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


@dataclass
class Paged:
    """Requests of mixed lengths on shuffled pages, with holes and bad ids in the table."""

    block_size: int
    num_blocks: int
    block_table: Tensor
    context_lens: Tensor

    def tensors(self) -> tuple[Tensor, Tensor]:
        return self.block_table, self.context_lens


@st.composite
def paged_batches(draw) -> Paged:
    batch, max_blocks = draw(st.integers(0, 4)), draw(st.integers(0, 4))
    block_size, num_blocks = draw(st.sampled_from([1, 2, 3, 8, 16])), batch * max_blocks + 2
    ids = draw(st.permutations(range(num_blocks)))[: batch * max_blocks]
    for i in draw(st.lists(st.integers(0, max(0, len(ids) - 1)), max_size=2)):
        if ids:
            ids[i] = draw(st.sampled_from([-1, -7, num_blocks, 2**31 - 1]))
    context_lens = draw(st.lists(LENGTHS, min_size=batch, max_size=batch))
    return Paged(block_size, num_blocks, ints(ids).reshape(batch, max_blocks), ints(context_lens))


# kv_append


def test_append_crosses_a_page_boundary(backend):
    k, v = filled(3, 2, 4).to(backend.device), -filled(3, 2, 5).to(backend.device)
    k_cache, v_cache = (torch.zeros(3, 2, 2, d, device=backend.device) for d in (4, 5))
    table, context, cu = ints([[2, 0]], backend.device), ints([1], backend.device), ints([0, 3], backend.device)
    backend.kv_append(k, v, k_cache, v_cache, table, context, cu)
    for x, cache in ((k, k_cache), (v, v_cache)):
        assert torch.equal(cache[2, 1], x[0]) and torch.equal(cache[0], x[1:])
        assert not cache[1].any() and not cache[2, 0].any()


def test_append_before_the_first_slot(backend):
    """Behind a context of -2 the first two nodes have no place, however many fit a page."""
    k = filled(5, 1, 4).to(backend.device)
    for block_size in (2, 3):
        caches = [torch.zeros(2, block_size, 1, 4, device=backend.device) for _ in range(2)]
        table, context, cu = ints([[1, 0]], backend.device), ints([-2], backend.device), ints([0, 5], backend.device)
        backend.kv_append(k, -k, *caches, table, context, cu)
        for x, cache in zip((k, -k), caches, strict=True):
            slots = cache.flip(0).flatten(0, 1)
            assert torch.equal(slots[:3], x[2:]) and not slots[3:].any()


@given(paged_batches(), st.data())
@SETTINGS
def test_append_equals_the_reference(backend, paged, data):
    batch = len(paged.context_lens)
    cu = ints(data.draw(st.lists(st.integers(-2, 12), min_size=batch + 1, max_size=batch + 1)))
    if data.draw(st.booleans()):
        cu = cu.sort().values
    nodes, heads = data.draw(st.integers(0, 10)), data.draw(st.integers(1, 3))
    dtype, d_k, d_v = data.draw(st.sampled_from(DTYPES)), data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    fused = filled(nodes, heads, d_k + d_v + 1, dtype=dtype)  # strided rows, as a fused QKV projection gives
    k, v = fused[..., :d_k], fused[..., d_k : d_k + d_v]
    layout = data.draw(st.sampled_from([(0, 1, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3)]))  # physical order of the dimensions
    caches = []
    for d in (d_k, d_v):
        shape = (paged.num_blocks, paged.block_size, heads, d)
        cache = torch.zeros([shape[i] for i in layout], dtype=dtype)
        caches.append(cache.permute([layout.index(i) for i in range(4)]))
    expected = [cache.clone() for cache in caches]
    reference.kv_append(k, v, *expected, paged.block_table, paged.context_lens, cu)
    backend.kv_append(*on(backend, k, v), *(caches := on(backend, *caches)), *on(backend, *paged.tensors(), cu))
    assert all(same_bytes(a, b) for a, b in zip(caches, expected, strict=True))


def test_append_latent_cache(backend):
    """MLA: the values are a prefix of the keys, in one cache."""
    k, cache = filled(5, 1, 9).to(backend.device), torch.zeros(4, 2, 1, 9, device=backend.device)
    arguments = (ints([[1, 3], [0, 2]], backend.device), ints([0, 1], backend.device), ints([0, 2, 5], backend.device))
    backend.kv_append(k, k[..., :7], cache, cache[..., :7], *arguments)
    assert torch.equal(cache[1, :, 0], k[:2, 0]) and torch.equal(cache[0, 1, 0], k[2, 0])
    assert torch.equal(cache[2, :, 0], k[3:, 0])


@pytest.mark.large("thousands of rows, to occupy threads")
def test_append_of_long_prompts(backend):
    """Enough bytes for several threads."""
    torch.manual_seed(0)
    lengths, block_size = [700, 0, 450], 16
    table = torch.randperm(3 * 50).reshape(3, 50).int().to(backend.device)
    k, v = (torch.randn(sum(lengths), 4, 64, device=backend.device) for _ in range(2))
    k_cache, v_cache = (torch.zeros(150, block_size, 4, 64, device=backend.device) for _ in range(2))
    context, cu = ints([5, 6, 0], backend.device), ints([0, 700, 700, 1150], backend.device)
    backend.kv_append(k, v, k_cache, v_cache, table, context, cu)
    for x, cache in ((k, k_cache), (v, v_cache)):
        for b, begin in ((0, 0), (2, 700)):
            slots = cache[table[b].long()].flatten(0, 1)
            written = slice(int(context[b]), int(context[b]) + lengths[b])
            assert torch.equal(slots[written], x[begin : begin + lengths[b]])
        assert cache.flatten(2).any(2).sum() == sum(lengths)


# kv_rollback


def test_rollback_of_a_path_across_pages(backend):
    cache = filled(4, 2, 3).to(backend.device)
    before = cache.clone()
    context = ints([1], backend.device)
    backend.kv_rollback(
        [cache],
        ints([[3, 0, 2]], backend.device),
        context,
        ints([2], backend.device),
        ints([[0, 2, 4]], backend.device),
    )
    assert context.tolist() == [4]
    assert torch.equal(cache[0, 0], before[0, 1])  # slot 2 <- 3
    assert torch.equal(cache[0, 1], before[2, 1])  # slot 3 <- 5
    cache[0] = before[0]
    assert torch.equal(cache, before)


@given(paged_batches(), st.data())
@SETTINGS
def test_rollback_equals_the_reference(backend, paged, data):
    batch, width = len(paged.context_lens), data.draw(st.integers(1, 6))
    if data.draw(st.booleans()):
        rows = [sorted(data.draw(st.sets(st.integers(1, 20), min_size=width, max_size=width))) for _ in range(batch)]
        path = ints([[0, *row] for row in rows]).reshape(batch, width + 1)
    else:  # anything
        path = ints(data.draw(st.lists(LENGTHS, min_size=batch * width, max_size=batch * width))).reshape(batch, width)
    num_accepted = ints(data.draw(st.lists(st.integers(-2, width + 1), min_size=batch, max_size=batch)))
    caches = []
    for i in range(data.draw(st.integers(0, 4))):
        row = data.draw(st.sampled_from([(), (1,), (3, 5), (2, 1, 64)]))
        cache = filled(paged.num_blocks, paged.block_size, 2, *row, dtype=data.draw(st.sampled_from(DTYPES)))
        caches.append(cache[:, :, i % 2])  # keys and values of one layer side by side: rows dense, cache not
    expected, expected_context = [cache.clone() for cache in caches], paged.context_lens.clone()
    reference.kv_rollback(expected, paged.block_table, expected_context, num_accepted, path)
    caches, (table, context) = on(backend, *caches), on(backend, *paged.tensors())
    backend.kv_rollback(caches, table, context, *on(backend, num_accepted, path))
    assert torch.equal(context.cpu(), expected_context)
    assert all(same_bytes(a, b) for a, b in zip(caches, expected, strict=True))


def test_rollback_gathers_what_was_written_before_it(backend):
    """The rows left are the accepted nodes' rows as they were appended, whatever the batch and the threads."""
    torch.manual_seed(0)
    batch, nodes, block_size, layers = 9, 16, 4, 7
    max_blocks = 8
    table = torch.randperm(batch * max_blocks).reshape(batch, max_blocks).int().to(backend.device)
    context = torch.arange(batch, dtype=torch.int32, device=backend.device)
    caches = [torch.randn(batch * max_blocks, block_size, 8, 33, device=backend.device) for _ in range(layers)]
    path = torch.stack([torch.randperm(nodes - 1)[:5].sort().values + 1 for _ in range(batch)])
    path = torch.cat([torch.zeros(batch, 1, dtype=torch.int64), path], 1).int().to(backend.device)
    num_accepted = ints([0, 1, 2, 3, 4, 5, 5, 2, 0], backend.device)

    def rows(b: int, slots: list[int]) -> list[Tensor]:
        pages = table[b].tolist()
        return [torch.stack([cache[pages[s // block_size], s % block_size] for s in slots]) for cache in caches]

    kept = [[b + i for i in path[b, : int(num_accepted[b]) + 1].tolist()] for b in range(batch)]
    expected = [rows(b, list(range(b)) + kept[b]) for b in range(batch)]
    backend.kv_rollback(caches, table, context, num_accepted, path)
    for b in range(batch):
        assert context[b] == b + num_accepted[b] + 1
        actual = rows(b, list(range(int(context[b]))))
        assert all(torch.equal(x, y) for x, y in zip(actual, expected[b], strict=True))


def test_rollback_is_the_same_on_one_thread_and_for_one_request():
    torch.manual_seed(0)
    table = torch.randperm(64).reshape(8, 8).int()
    context, num_accepted = torch.arange(8, dtype=torch.int32), ints([3] * 8)
    path = ints([[0, 3, 7, 12]] * 8)
    start = [torch.randn(64, 4, 8, 128) for _ in range(16)]
    outcomes = []
    threads = torch.get_num_threads()
    for count in (1, 2):
        torch.set_num_threads(count)
        caches, lens = [cache.clone() for cache in start], context.clone()
        specdec_ops.kv_rollback(caches, table, lens, num_accepted, path)
        outcomes.append((caches, lens))
    torch.set_num_threads(threads)
    caches, lens = [cache.clone() for cache in start], context.clone()
    for b in range(8):
        one = slice(b, b + 1)
        specdec_ops.kv_rollback(caches, table[one], lens[one], num_accepted[one], path[one])
    outcomes.append((caches, lens))
    for caches, lens in outcomes[1:]:
        assert torch.equal(lens, outcomes[0][1])
        assert all(torch.equal(a, b) for a, b in zip(caches, outcomes[0][0], strict=True))


def test_rollback_of_more_than_the_caches_hold():
    """On the CPU rows are then written past its caches, where they are whole aligned vectors."""
    dims = {torch.float32: 1 << 18, torch.bfloat16: (1 << 19) + 1}
    caches = [torch.randn(4, 4, 1, dim).to(dtype) for dtype, dim in dims.items()]
    size = caches[0].numel()
    caches += [torch.randn(size + 1)[1:].view(caches[0].shape), torch.randn(2 * size)[:size].view(caches[0].shape)]
    table, path = ints([[2, 0], [3, 1]]), ints([[0, 2, 3, 5], [0, 1, 2, 4]])
    expected = [cache.clone() for cache in caches]
    for b, moves in enumerate([[(2, 1), (3, 2), (5, 3)], [(4, 3)]]):
        for node, target in moves:
            (from_block, from_slot), (to_block, to_slot) = divmod(2 + node, 4), divmod(2 + target, 4)
            for cache in expected:
                cache[table[b, to_block], to_slot] = cache[table[b, from_block], from_slot]
    assert sum(4 * cache[0, 0].nbytes for cache in caches) >= 16 << 20  # kStreamBytes
    lens = ints([2, 2])
    specdec_ops.kv_rollback(caches, table, lens, ints([3, 3]), path)
    assert lens.tolist() == [6, 6]
    assert all(torch.equal(a, b) for a, b in zip(caches, expected, strict=True))


def test_rollback_of_a_chain_only_advances(backend):
    cache = filled(2, 4, 3).to(backend.device)
    before, context = cache.clone(), ints([1, 2, 2**31 - 2, 3], backend.device)
    table = ints([[0], [1], [1], [0]], backend.device)
    backend.kv_rollback([cache], table, context, ints([0, 3, 5, -1], backend.device))
    assert context.tolist() == [2, 6, 2**31 - 1, 3]
    assert torch.equal(cache, before)


def test_rollback_of_rows_in_place_never_writes():
    """The cache is mapped read-only: one store, even of the same bytes, would kill the process."""
    script = """
import mmap, tempfile, warnings, torch, specdec_ops
warnings.simplefilter("ignore")
with tempfile.TemporaryFile() as file:
    file.write(bytes(range(256)) * 64)
    file.flush()
    pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    cache = torch.frombuffer(pages, dtype=torch.float32).view(4, 8, 128)
    table, lens = torch.tensor([[0, 1], [2, 3]], dtype=torch.int32), torch.tensor([6, 1], dtype=torch.int32)
    accepted = torch.tensor([4, 2], dtype=torch.int32)
    path = torch.tensor([[0, 1, 2, 3, 4], [0, 1, 2, -1, -1]], dtype=torch.int32)
    specdec_ops.kv_rollback([cache], table, lens, accepted)
    specdec_ops.kv_rollback([cache], table, lens.clone(), accepted, path)
    print("untouched", lens.tolist(), flush=True)
    specdec_ops.kv_rollback([cache], table, lens.clone(), accepted, path + 1)
    print("survived a write", flush=True)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.stdout.strip() == "untouched [11, 4]", result.stderr
    assert result.returncode != 0  # the moves at the end do write


def test_no_caches(backend):
    context = ints([3], backend.device)
    backend.kv_rollback(
        [], ints([[0]], backend.device), context, ints([1], backend.device), ints([[0, 2]], backend.device)
    )
    assert context.tolist() == [5]


def test_offsets_past_two_to_the_31(backend):
    """Pages of a large cache that are never touched cost nothing."""
    blocks, block_size, d = 40_000, 16, 4096
    assert blocks * block_size * d > 2**31
    cache = torch.empty(blocks, block_size, 1, d, dtype=torch.int8, device=backend.device)
    table = ints([[blocks - 1, blocks - 2]], backend.device)
    k, context = filled(5, 1, d, dtype=torch.int8).to(backend.device), ints([14], backend.device)
    backend.kv_append(k, k, cache, cache, table, context, ints([0, 5], backend.device))
    assert torch.equal(cache[blocks - 1, 14:], k[:2]) and torch.equal(cache[blocks - 2, :3], k[2:])
    backend.kv_rollback([cache], table, context, ints([2], backend.device), ints([[0, 3, 4]], backend.device))
    assert torch.equal(cache[blocks - 1, 15], k[3]) and torch.equal(cache[blocks - 2, 0], k[4])
    assert context.tolist() == [17]


def test_append_to_heads_far_apart(backend):
    apart, d = 2**30 + 4096, 8
    k = filled(5, 3, d, dtype=torch.int8).to(backend.device)
    far = torch.empty_strided(k.shape, (d, apart, 1), dtype=torch.int8, device=backend.device).copy_(k)
    cache = torch.empty_strided((2, 4, 3, d), (4 * d, d, apart, 1), dtype=torch.int8, device=backend.device)
    arguments = (ints([[1, 0]], backend.device), ints([2], backend.device), ints([0, 5], backend.device))
    backend.kv_append(far, far, cache, cache, *arguments)
    assert torch.equal(torch.cat([cache[1, 2:], cache[0, :3]]), k)


# kv_truncate


def test_truncate(backend):
    context = ints([5, 5, 0, 7, -4], backend.device)
    backend.kv_truncate(context, ints([3, 9, 2, -1, -6], backend.device))
    assert context.tolist() == [3, 5, 0, 0, 0]


# blocks_reserve, blocks_release


def test_reserve_serves_in_order_all_or_nothing(backend):
    table = ints([[7, -1, -1], [-1, -1, -1], [-1, -1, -1], [-1, -1, -1]], backend.device)
    free, num_free = ints([5, 3, 1, 9], backend.device), ints([3], backend.device)
    context = ints([4, 0, 0, 9], backend.device)
    status = backend.blocks_reserve(table, free, num_free, context, ints([1, 12, 3, 9], backend.device), 4)
    assert status.tolist() == [0, 16, 0, 16]  # the last asks for more than its row of the table holds
    assert table.tolist() == [[7, 1, -1], [-1] * 3, [3, -1, -1], [-1] * 3]
    assert num_free.tolist() == [1]


def test_release_returns_pages_past_the_last_token(backend):
    table = ints([[4, 6, 2], [1, 3, -1], [0, -1, -1]], backend.device)
    free, num_free = ints([-1] * 8, backend.device), ints([0], backend.device)
    backend.blocks_release(table, free, num_free, ints([5, 0, 4], backend.device), 4)
    assert table.tolist() == [[4, 6, -1], [-1] * 3, [0, -1, -1]]
    assert sorted(free[: int(num_free)].tolist()) == [1, 2, 3]
    before = free.clone()
    backend.blocks_reserve(table, free, num_free, ints([5, 0, 4], backend.device), ints([0, 5, 0], backend.device), 4)
    assert table[1].tolist() == [1, 3, -1] and torch.equal(free, before)


@given(st.data())
@SETTINGS
def test_pages_are_conserved_and_never_owned_twice(backend, data):
    batch, max_blocks, pages = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4)), data.draw(st.integers(1, 9))
    block_size = data.draw(st.integers(1, 5))
    context = ints([0] * batch, backend.device)
    pool = [ints([[-1] * max_blocks] * batch), ints(data.draw(st.permutations(range(pages)))), ints([pages])]
    expected, (table, free, num_free) = [x.clone() for x in pool], on(backend, *pool)
    for _ in range(6):
        new, kept = (ints(data.draw(st.lists(st.integers(0, 12), min_size=batch, max_size=batch))) for _ in range(2))
        expected_status = reference.blocks_reserve(*expected, context.cpu(), new, block_size)
        new, kept = on(backend, new, kept)
        status = backend.blocks_reserve(table, free, num_free, context, new, block_size)
        assert status.tolist() == expected_status.tolist()
        context += torch.where(status == 0, new, 0)
        assert ((table >= 0).sum(1) * block_size >= context).all()
        backend.kv_truncate(context, kept)
        reference.blocks_release(*expected, context.cpu(), block_size)
        backend.blocks_release(table, free, num_free, context, block_size)
        assert [table.tolist(), free.tolist(), num_free.tolist()] == [x.tolist() for x in expected]
        assert sorted(table[table >= 0].tolist() + free[: int(num_free)].tolist()) == list(range(pages))


@given(st.data())
@SETTINGS
def test_corrupt_pools_stay_in_bounds(backend, data):
    def anything(n: int) -> Tensor:
        numbers = st.one_of(st.integers(-3, 9), st.sampled_from([-(2**31), 2**31 - 1]))
        return ints(data.draw(st.lists(numbers, min_size=n, max_size=n)))

    batch, max_blocks, capacity, block_size = (data.draw(st.integers(low, 3)) for low in (0, 0, 0, 1))
    table, guarded, num_free = (
        anything(batch * max_blocks).reshape(batch, max_blocks),
        anything(capacity + 2),
        anything(1),
    )
    context, new = anything(batch), anything(batch)
    expected = [x.clone() for x in (table, guarded, num_free)]
    expected_pool = (expected[0], expected[1][1:-1], expected[2])
    expected_status = reference.blocks_reserve(*expected_pool, context, new, block_size)
    reference.blocks_release(*expected_pool, context, block_size)
    table, guarded, num_free, context, new = actual = on(backend, table, guarded, num_free, context, new)
    status = backend.blocks_reserve(table, guarded[1:-1], num_free, context, new, block_size)
    backend.blocks_release(table, guarded[1:-1], num_free, context, block_size)
    assert status.tolist() == expected_status.tolist()
    assert [x.tolist() for x in actual[:3]] == [x.tolist() for x in expected]


# arguments, tracing


@without_reference
def test_bad_arguments(backend):
    table, lens, cu = on(backend, ints([[0], [1]]), ints([0, 0]), ints([0, 1, 2]))
    cache, k = on(backend, torch.zeros(4, 2, 3, 8), torch.zeros(2, 3, 8))
    append = backend.kv_append
    with pytest.raises(ValueError, match=r"^k: expected shape \[2, 3, 8\], got \[2, 3, 7\]"):
        append(k[..., :7], k, cache, cache, table, lens, cu)
    with pytest.raises(ValueError, match=r"^v: expected dtype float32, got float16"):
        append(k, k.half(), cache, cache, table, lens, cu)
    with pytest.raises(ValueError, match=r"^v_cache: expected shape \[4, 2, 3, \*\], got \[4, 1, 3, 8\]"):
        append(k, k, cache, cache[:, :1], table, lens, cu)
    with pytest.raises(ValueError, match=r"^k: expected a last dimension of stride 1"):
        append(k.mT.contiguous().mT, k, cache, cache, table, lens, cu)
    with pytest.raises(ValueError, match=r"^cu_nodes: expected shape \[3\], got \[2\]"):
        append(k, k, cache, cache, table, lens, cu[:2])
    rollback = backend.kv_rollback
    with pytest.raises(ValueError, match=r"^caches\[1\]: expected the blocks and block_size of caches\[0\], \[4, 2\]"):
        rollback([cache, cache[:3]], table, lens, lens)
    with pytest.raises(ValueError, match=r"^caches\[1\]: expected contiguous rows"):
        rollback([cache, cache.mT.contiguous().mT], table, lens, lens)
    with pytest.raises(ValueError, match=r"^caches\[0\]: expected shape \[blocks, block_size, ...\], got \[4\]"):
        rollback([cache[:, 0, 0, 0]], table, lens, lens)
    with pytest.raises(ValueError, match=r"^num_accepted: expected dtype int32, got int64"):
        rollback([cache], table, lens, lens.long())
    with pytest.raises(ValueError, match=r"^path: expected shape"):
        rollback([cache], table, lens, lens, table[:, :0])
    with pytest.raises(ValueError, match=r"^new_lens: expected shape \[2\], got \[3\]"):
        backend.kv_truncate(lens, cu)
    with pytest.raises(ValueError, match=r"^block_size: expected 1 to 2147483647, got 0"):
        backend.blocks_reserve(table, lens, lens[:1], lens, lens, 0)
    with pytest.raises(ValueError, match=r"^num_free: expected shape \[1\], got \[2\]"):
        backend.blocks_release(table, lens, lens, lens, 4)


def _arguments():
    caches = [filled(6, 2, 2, 4), filled(6, 2, 2, 3, dtype=torch.int8), filled(6, 2, 2, dtype=torch.float16)]
    table, lens, cu = ints([[0, 1, 2], [5, 4, 3]]), ints([1, 2]), ints([0, 3, 5])
    return caches, table, lens, cu


def test_opcheck():
    caches, table, lens, cu = _arguments()
    ops, check = torch.ops.specdec, torch.library.opcheck
    check(ops.kv_append, (filled(5, 2, 4), filled(5, 2, 3, dtype=torch.int8), *caches[:2], table, lens, cu))
    check(ops.kv_rollback, (caches, table, lens, ints([1, 1]), ints([[0, 2], [0, 1]])))
    check(ops.kv_rollback, (caches, table, lens, ints([1, 1])))
    check(ops.kv_truncate, (lens, ints([0, 1])))
    pool = (ints([[0, -1], [1, -1]]), ints([3, 2]), ints([2]))
    check(ops.blocks_reserve, (*pool, lens, lens, 2))
    check(ops.blocks_release, (*pool, ints([0, 0]), 2))


def test_compile():
    def step(k, v, k_cache, v_cache, scales, table, free, num_free, lens, cu, num_accepted, path):
        status = specdec_ops.blocks_reserve(table, free, num_free, lens, torch.full_like(lens, 3), 2)
        specdec_ops.kv_append(k, v, k_cache, v_cache, table, lens, cu)
        specdec_ops.kv_rollback([k_cache, v_cache, scales], table, lens, num_accepted, path)
        specdec_ops.kv_truncate(lens, lens - 1)
        specdec_ops.blocks_release(table, free, num_free, lens, 2)
        return status

    def inputs():
        caches, table, lens, cu = _arguments()
        k, v = filled(5, 2, 4), filled(5, 2, 3, dtype=torch.int8)
        return [k, v, *caches, table, ints([-1] * 6), ints([0]), lens, cu, ints([1, 1]), ints([[0, 2], [0, 1]])]

    eager, compiled = inputs(), inputs()
    expected = step(*eager)
    assert torch.equal(torch.compile(step, fullgraph=True, backend="aot_eager")(*compiled), expected)
    assert all(torch.equal(a, b) for a, b in zip(eager, compiled, strict=True))
    assert not torch.equal(eager[2], inputs()[2]) and eager[7].item() > 0


def test_compile_append_to_a_latent_cache():
    def append(k, cache, table, lens, cu):
        specdec_ops.kv_append(k, k[..., :7], cache, cache[..., :7], table, lens, cu)

    k, cache = filled(3, 1, 9), torch.zeros(4, 2, 1, 9)
    torch.compile(append, fullgraph=True, backend="aot_eager")(k, cache, ints([[1, 3]]), ints([1]), ints([0, 3]))
    assert torch.equal(cache[1, 1], k[0]) and torch.equal(cache[3], k[1:])
