"""Tolerances, relative to values of order one: float32 kernels accumulate in float32; bfloat16 and float16 outputs
carry half a unit in the last place of rounding, and AMX rounds the probabilities to bfloat16 as well."""

import ctypes
import itertools
import math
import mmap
import os
import subprocess
import sys

import pytest
import torch
from backends import without_reference
from hypothesis import given, settings
from hypothesis import strategies as st

import specdec_ops
from specdec_ops import reference

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
LSE_TOLERANCE = 1e-4
DTYPES = list(TOLERANCE)


def random_trees(sizes, generator, max_nodes):
    """Masks of random trees, `[sum(sizes), words]`, and the depths."""
    words = max(1, -(-max_nodes // 64))
    masks, depths = [], []
    for size in sizes:
        rows = [[0] * words for _ in range(size)]
        depth = [0] * size
        for i in range(size):
            if i > 0:
                parent = int(torch.randint(max(0, i - 9), i, (), generator=generator))
                rows[i], depth[i] = list(rows[parent]), depth[parent] + 1
            rows[i][i // 64] |= 1 << (i % 64)
        masks += rows
        depths += depth
    signed = [[word - (1 << 64) if word >= 1 << 63 else word for word in row] for row in masks]
    return (
        torch.tensor(signed, dtype=torch.int64).reshape(len(masks), words),
        torch.tensor(depths, dtype=torch.int32),
    )


def make_case(
    contexts,
    nodes,
    *,
    heads=8,
    kv_heads=2,
    d_qk=64,
    d_v=None,
    block_size=16,
    dtype=torch.float32,
    tree=True,
    int8=None,
    seed=0,
    spare_rows=0,
):
    """Arguments and keywords of a call over shuffled blocks."""
    generator = torch.Generator().manual_seed(seed)
    d_v = d_qk if d_v is None else d_v
    batch, max_nodes = len(contexts), max(nodes, default=0)
    blocks_each = [-(-(c + n) // block_size) for c, n in zip(contexts, nodes, strict=True)]
    num_blocks = sum(blocks_each) + 2
    order = torch.randperm(num_blocks, generator=generator, dtype=torch.int32)
    block_table = torch.full((batch, max([*blocks_each, 1])), -1, dtype=torch.int32)
    taken = 0
    for b, count in enumerate(blocks_each):
        block_table[b, :count] = order[taken : taken + count]
        taken += count

    def cache(width):
        shape = (num_blocks, block_size, kv_heads, width)
        if int8:
            return torch.randint(-127, 128, shape, generator=generator, dtype=torch.int8)
        return torch.randn(shape, generator=generator).to(dtype)

    q = torch.randn(sum(nodes) + spare_rows, heads, d_qk, generator=generator).to(dtype)
    cu_nodes = torch.tensor([0, *nodes], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    args = [q, cache(d_qk), cache(d_v), block_table, torch.tensor(contexts, dtype=torch.int32), cu_nodes]
    kwargs = {"scale": d_qk**-0.5, "max_nodes": max_nodes}
    if tree:
        mask, depth = random_trees([*nodes, *[1] * spare_rows], generator, max_nodes)
        args.append(mask)
        kwargs["depth"] = depth
    if int8:
        shape = (kv_heads,) if int8 == "head" else (num_blocks, block_size, kv_heads)
        for name in ("k_scale", "v_scale"):
            kwargs[name] = (torch.rand(shape, generator=generator) + 0.5) / 64
    return args, kwargs


class CPU:
    device = torch.device("cpu")
    tree_attention = staticmethod(torch.ops.specdec.tree_attention)


def attend(args, kwargs, backend=CPU):
    move = lambda x: x.to(backend.device) if isinstance(x, torch.Tensor) else x  # noqa: E731
    return backend.tree_attention(*map(move, args), **{name: move(value) for name, value in kwargs.items()})


def check(backend, args, kwargs):
    """Runs the backend against the float64 reference."""
    expected, expected_lse = reference.tree_attention(args[0].double(), *args[1:], **kwargs)
    out, lse = attend(args, kwargs, backend)
    assert out.dtype == args[0].dtype and lse.dtype == torch.float32
    assert out.shape == (*args[0].shape[:2], args[2].shape[3]) and lse.shape == args[0].shape[:2]
    tolerance = TOLERANCE[out.dtype]
    torch.testing.assert_close(out.cpu().double(), expected, rtol=tolerance, atol=tolerance)
    lse_tolerance = LSE_TOLERANCE
    torch.testing.assert_close(lse.cpu(), expected_lse, rtol=lse_tolerance, atol=lse_tolerance)
    return out, lse


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", [64, 80, 96, 128, 192, 256])
def test_head_sizes(backend, dtype, d):
    check(backend, *make_case([37, 5], [13, 1], heads=6, kv_heads=2, d_qk=d, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (8, 2), (7, 1)])
def test_groups(backend, dtype, heads, kv_heads):
    check(backend, *make_case([37, 5, 70], [13, 1, 4], heads=heads, kv_heads=kv_heads, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block_size", [1, 8, 16, 128, 1024])
def test_block_sizes_and_page_boundaries(backend, dtype, block_size):
    contexts, nodes = backend.scale(
        ([0, 1, 15, 16, 17, 95, 96, 97, 127, 128, 300, 700], [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 33]),
        ([0, 15, 17, 40], [1, 2, 17, 6]),
    )
    args, kwargs = make_case(contexts, nodes, block_size=block_size, dtype=dtype)
    check(backend, args, kwargs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "nodes", [63, 64, 65, pytest.param(512, marks=pytest.mark.large("512 nodes; 65 are two words"))]
)
def test_large_trees(backend, dtype, nodes):
    check(backend, *make_case([70], [nodes], heads=4, kv_heads=2, dtype=dtype))


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    requests=st.lists(st.tuples(st.integers(0, 90), st.integers(0, 20)), min_size=0, max_size=4),
    heads=st.sampled_from([(1, 1), (4, 2), (5, 1), (8, 2), (16, 1)]),
    d_qk=st.sampled_from([8, 20, 33, 64]),
    d_v=st.sampled_from([8, 20, 33, 64]),
    block_size=st.sampled_from([1, 3, 16]),
    dtype=st.sampled_from(DTYPES),
    tree=st.booleans(),
    given_depth=st.booleans(),
    window=st.sampled_from([0, 1, 5, 40]),
    softcap=st.sampled_from([0.0, 3.0]),
    sinks=st.booleans(),
    int8=st.sampled_from([None, "head", "token"]),
    factor=st.sampled_from([1.0, -1.0, 0.0]),
    seed=st.integers(0, 2**16),
)
def test_random_batches(
    requests, heads, d_qk, d_v, block_size, dtype, tree, given_depth, window, softcap, sinks, int8, factor, seed
):
    contexts, nodes = [r[0] for r in requests], [r[1] for r in requests]
    args, kwargs = make_case(
        contexts,
        nodes,
        heads=heads[0],
        kv_heads=heads[1],
        d_qk=d_qk,
        d_v=d_v,
        block_size=block_size,
        dtype=dtype,
        tree=tree,
        int8=int8,
        seed=seed,
        spare_rows=seed % 3,
    )
    kwargs.update(window=window, softcap=softcap, scale=kwargs["scale"] * factor)
    if not given_depth:
        kwargs.pop("depth", None)
    if sinks:
        kwargs["sinks"] = torch.randn(heads[0], generator=torch.Generator().manual_seed(seed))
    check(CPU, args, kwargs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [1, 7, 64, 1000])
@pytest.mark.parametrize("tree", [True, False])
def test_window(backend, dtype, window, tree):
    args, kwargs = make_case([300, 20, 0], [40, 9, 3], dtype=dtype, tree=tree)
    check(backend, args, {**kwargs, "window": window})


def test_window_counts_positions_not_slots(backend):
    # Two children of the root: the second lies in slot 3 but at position 2, so a window of 2 still reaches slot 1.
    args, kwargs = make_case([1], [3], heads=1, kv_heads=1)
    args[6] = torch.tensor([[0b001], [0b011], [0b101]])
    kwargs["depth"] = torch.tensor([0, 1, 1], dtype=torch.int32)
    _, lse = check(backend, args, {**kwargs, "window": 2})
    q, k_cache, _, table = args[:4]
    keys = k_cache[int(table[0, 0]), :4, 0]
    expected = torch.logsumexp(q[2, 0] @ keys[[1, 3]].T * kwargs["scale"], 0)
    torch.testing.assert_close(lse[2, 0].cpu(), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_softcap_and_sinks(backend, dtype):
    args, kwargs = make_case([100, 0], [9, 2], dtype=dtype)
    args[0] = args[0] * 4
    sinks = torch.tensor([-math.inf, -5.0, 0.0, 1.0, 2.0, 5.0, 20.0, 100.0])
    check(backend, args, {**kwargs, "softcap": 5.0, "sinks": sinks})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("int8", ["head", "token"])
@pytest.mark.parametrize("nodes", [1, 17])
def test_int8_cache(backend, dtype, int8, nodes):
    check(backend, *make_case([130, 3], [nodes, 1], dtype=dtype, int8=int8))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("int8", [None, "head", "token"])
def test_more_requests_than_threads(backend, dtype, int8):
    """Then a task of the CPU has all KV heads, with few rows and with many."""
    case = make_case([100, 0, 37, 64, 5], [1, 17, 2, 9, 1], kv_heads=4, d_v=32, dtype=dtype, int8=int8)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        check(backend, *case)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("nodes", [1, 5])
def test_mla_latent_cache(backend, dtype, nodes):
    args, kwargs = make_case([75, 9], [nodes, 2], heads=16, kv_heads=1, d_qk=576, dtype=dtype)
    args[2] = args[1][..., :512]
    check(backend, args, kwargs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("nodes", [1, 12])
def test_strided_views(backend, dtype, nodes):
    args, kwargs = make_case([75, 9], [nodes, 2], dtype=dtype)
    expected = check(backend, args, kwargs)
    args[0] = args[0].transpose(0, 1).contiguous().transpose(0, 1)  # heads first
    args[1] = args[1].transpose(1, 2).contiguous().transpose(1, 2)  # HND
    args[2] = torch.cat([args[2], args[2]], 3)[..., : args[2].shape[3]]
    for actual, wanted in zip(check(backend, args, kwargs), expected, strict=True):
        assert torch.equal(actual, wanted)


def test_contiguous_cache(backend):
    args, kwargs = make_case([75, 0, 33], [4, 2, 7], block_size=128)
    args[3] = torch.arange(3, dtype=torch.int32)[:, None]
    check(backend, args, kwargs)


@without_reference
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("nodes", [1, 6, 20])
def test_chain_is_no_mask(backend, dtype, nodes):
    args, kwargs = make_case([90, 200], [nodes, nodes], dtype=dtype, tree=False)
    chain = torch.tensor([(1 << (i + 1)) - 1 for i in range(nodes)] * 2)[:, None]
    for actual, expected in zip(attend([*args, chain], kwargs, backend), attend(args, kwargs, backend), strict=True):
        assert torch.equal(actual, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_long_chain(backend, dtype):
    check(backend, *make_case([40], [backend.scale(1500, 150)], heads=2, kv_heads=1, dtype=dtype, tree=False))


@pytest.mark.parametrize(
    ("dtype", "nodes"),
    [(torch.float32, 12), (torch.float16, 12), (torch.bfloat16, 2), (torch.bfloat16, 4), (torch.bfloat16, 20)],
)
def test_peaked_scores(backend, dtype, nodes):
    """Maxima that keep rising along the context, in each row by more or by less than what is worth a rescaling."""
    slots = 800 + nodes
    args, kwargs = make_case([800], [nodes], heads=4, kv_heads=1, block_size=slots, dtype=dtype, tree=False)
    args[3][:] = 0
    args[0][:] = torch.linspace(0.1, 1, nodes * 4).view(nodes, 4, 1)
    args[1][0] = torch.linspace(-1, 4, slots)[:, None, None] + torch.randn(slots, 1, 64) * 0.1
    check(backend, args, {**kwargs, "scale": 0.1})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [-0.1, 0.0])
def test_scale_that_is_not_positive(backend, dtype, scale):
    args, kwargs = make_case([37, 5, 60], [1, 5, 20], heads=4, kv_heads=1, dtype=dtype)
    check(backend, args, {**kwargs, "scale": scale})


def test_empty(backend):
    args, kwargs = make_case([], [], heads=2)
    out, lse = check(backend, args, kwargs)
    assert out.numel() == lse.numel() == 0
    args, kwargs = make_case([0, 5, 0], [0, 0, 2])
    check(backend, args, kwargs)


def test_nothing_visible(backend):
    args, kwargs = make_case([20, 4], [9, 1], spare_rows=2)
    args[6][3] = 0  # a node that does not see itself
    args[4][0] = 0
    out, lse = check(backend, args, kwargs)
    for row in (3, 10, 11):
        assert (out[row] == 0).all() and (lse[row] == -math.inf).all()
    sinks = torch.arange(8.0)
    out, lse = check(backend, args, {**kwargs, "sinks": sinks})
    assert (out[3] == 0).all() and torch.equal(lse[3].cpu(), sinks)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("nodes", [1, 30])
def test_bad_block_ids_are_not_seen(backend, dtype, nodes):
    args, kwargs = make_case([150, 60], [nodes, 2], dtype=dtype)
    table, num_blocks = args[3], args[1].shape[0]
    table[0, 2], table[0, 4], table[1, 0] = -1, num_blocks, 2**31 - 1
    table[1, 1:] = -(2**31)
    _, lse = check(backend, args, kwargs)
    assert (lse[nodes:] == -math.inf).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("nodes", [3, 12])
def test_bad_lengths(backend, dtype, nodes):
    args, kwargs = make_case([50, 40, 30], [nodes] * 3, dtype=dtype)
    capacity = args[3].shape[1] * args[1].shape[1]
    for contexts in ([-5, 2**31 - 1, 30], [capacity - 1, capacity, capacity + 1], [-(2**31), 0, 0]):
        args[4] = torch.tensor(contexts, dtype=torch.int32)
        for window in (0, 8):
            check(backend, args, {**kwargs, "window": window})
    args[4] = torch.tensor([50, 40, 30], dtype=torch.int32)
    n = 3 * nodes
    for cu_nodes in ([0, n, 1, 2 * n], [-7, 2, 2**31 - 1, 0], [n, 0, 0, 0], [5, 1, n - 1, n]):
        args[5] = torch.tensor(cu_nodes, dtype=torch.int32)
        kwargs["max_nodes"] = 3 * nodes
        check(backend, args, kwargs)


def test_a_table_of_more_slots_than_int32_counts(backend):
    args, kwargs = make_case([5000, 3], [4, 2], heads=2, kv_heads=1, d_qk=16, block_size=4096)
    args[3] = torch.nn.functional.pad(args[3], (0, 1 << 19), value=-1)
    for window in (0, 1000):
        check(backend, args, {**kwargs, "window": window})


def test_nodes_past_max_nodes(backend):
    args, kwargs = make_case([20, 5], [9, 3])
    kwargs["max_nodes"] = 4
    out, lse = check(backend, args, kwargs)
    assert (out[4:9] == 0).all() and (lse[4:9] == -math.inf).all() and (lse[9:] > -math.inf).all()


@pytest.mark.parametrize("nodes", [2, 12])
def test_garbage_depths(backend, nodes):
    args, kwargs = make_case([50], [nodes])
    kwargs["depth"] = torch.tensor([-(2**31), 2**31 - 1, *[7] * (nodes - 2)], dtype=torch.int32)
    check(backend, args, {**kwargs, "window": 9})


@without_reference
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("nodes", [2, 12])
def test_nan_stays_in_its_row(backend, dtype, nodes):
    args, kwargs = make_case([50], [nodes], dtype=dtype)
    expected, _ = attend(args, kwargs, backend)
    args[0][0] = math.nan
    out, lse = attend(args, kwargs, backend)
    assert out[0].isnan().all() and lse[0].isnan().all()
    assert torch.equal(out[1:], expected[1:])


@without_reference
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("nodes", [1, 12])
@pytest.mark.parametrize("far", [0, 1, 2], ids=["blocks", "slots", "heads"])
def test_offsets_past_two_to_the_31(backend, dtype, nodes, far):
    """A cache that spans up to 12 GiB of address space and touches few pages of it."""
    args, kwargs = make_case([20], [nodes], heads=6, kv_heads=3, dtype=dtype)
    args[3] = torch.tensor([[args[1].shape[0] - 1, 0]], dtype=torch.int32)
    expected = attend(args, kwargs, backend)
    for i in (1, 2):
        strides = list(args[i].stride())
        strides[far] = 2**31 // (args[i].shape[far] - 1) + 4096
        cache = torch.empty_strided(args[i].shape, strides, dtype=dtype, device=backend.device)
        args[i] = cache.copy_(args[i])
        assert cache[-1, -1, -1].storage_offset() > 2**31
    for a, e in zip(attend(args, kwargs, backend), expected, strict=True):
        assert torch.equal(a, e)


@without_reference
@pytest.mark.parametrize("dtype", DTYPES)
def test_batch_invariance(backend, dtype):
    """A request alone gives the bits it gives within a batch, on one thread or two."""
    contexts, nodes = backend.scale(([1300, 0, 700, 33, 257], [1, 5, 16, 64, 3]), ([70, 0, 33], [1, 5, 16]))
    args, kwargs = make_case(contexts, nodes, dtype=dtype)
    threads = torch.get_num_threads()
    whole = attend(args, kwargs, backend)
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            for actual, expected in zip(attend(args, kwargs, backend), whole, strict=True):
                assert torch.equal(actual, expected)
            for b in range(len(nodes)):
                rows = slice(int(args[5][b]), int(args[5][b + 1]))
                alone = [args[0][rows], args[1], args[2], args[3][b : b + 1], args[4][b : b + 1]]
                alone += [torch.tensor([0, nodes[b]], dtype=torch.int32), args[6][rows]]
                depth = kwargs["depth"][rows]
                for actual, expected in zip(attend(alone, {**kwargs, "depth": depth}, backend), whole, strict=True):
                    assert torch.equal(actual, expected[rows])
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("nodes", [1, 40])
def test_long_context_is_split_and_merged(backend, dtype, nodes):
    args, kwargs = make_case([backend.scale(5000, 300)], [nodes], heads=4, kv_heads=1, dtype=dtype)
    kwargs["sinks"] = torch.tensor([0.0, 1.0, 3.0, 9.0])
    check(backend, args, kwargs)


@pytest.mark.parametrize("dtype", DTYPES)
def test_merge_attention_of_a_split_context(backend, dtype):
    args, kwargs = make_case([96], [10], dtype=dtype, tree=False)
    whole, whole_lse = attend(args, kwargs)
    # The first 48 slots as context of one call where no node is visible, the rest as a request of its own.
    none = torch.zeros(10, 1, dtype=torch.int64)
    q, k, v, table, _, cu_nodes = args
    length = torch.tensor([48], dtype=torch.int32)
    first = attend([q, k, v, table, length, cu_nodes, none], kwargs)
    second = attend([q, k, v, table[:, 3:].contiguous(), length, cu_nodes], kwargs)
    move = lambda x: x.to(backend.device)  # noqa: E731
    out, lse = backend.merge_attention(*map(move, (*first, *second)))
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(out.cpu(), whole, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(lse.cpu(), whole_lse, rtol=LSE_TOLERANCE, atol=LSE_TOLERANCE)


@pytest.mark.parametrize("dtype", DTYPES)
def test_merge_attention_with_nothing(backend, dtype):
    out_a = torch.randn(3, 2, 33).to(dtype)
    lse_a, lse_b = torch.randn(3, 2), torch.full((3, 2), -math.inf)
    lse_a[2] = -math.inf
    zeros = torch.zeros_like(out_a)
    move = lambda x: x.to(backend.device)  # noqa: E731
    for parts in ((out_a, lse_a, zeros, lse_b), (zeros, lse_b, out_a, lse_a)):
        out, lse = backend.merge_attention(*map(move, parts))
        assert torch.equal(out[:2].cpu(), out_a[:2]) and (out[2] == 0).all()
        torch.testing.assert_close(lse.cpu(), lse_a)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [33, 600])
def test_merge_attention_ignores_a_part_without_weight(backend, dtype, size):
    parts, lses = torch.randn(2, 5, 4, size).to(dtype), torch.randn(2, 5, 4)
    nothing = torch.zeros(2, 5, 4, dtype=torch.bool)
    nothing[0, 0], nothing[1, 1], nothing[:, 2], nothing[0, 3, 1] = True, True, True, True
    lses[nothing] = -math.inf
    clean = parts.masked_fill(nothing[..., None], 0.0)
    expected, expected_lse = reference.merge_attention(clean[0], lses[0], clean[1], lses[1])
    for garbage in (math.nan, math.inf, 1e4):
        dirty = parts.masked_fill(nothing[..., None], garbage)
        move = lambda x: x.to(backend.device)  # noqa: E731
        out, lse = backend.merge_attention(*map(move, (dirty[0], lses[0], dirty[1], lses[1])))
        tolerance = TOLERANCE[dtype]
        torch.testing.assert_close(out.cpu(), expected, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(lse.cpu(), expected_lse, rtol=LSE_TOLERANCE, atol=LSE_TOLERANCE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("other", [0.0, -math.inf, math.inf])
def test_merge_attention_keeps_nan(backend, dtype, bad, other):
    """A part of a query with NaN is not taken for one that saw nothing; scores that overflowed are no better."""
    out, lse = torch.ones(3, 2, 33, dtype=dtype, device=backend.device), torch.zeros(3, 2, device=backend.device)
    bad_out, bad_lse = out.clone(), lse.clone()
    bad_out[1, 0], bad_lse[1, 0], lse[1, 0] = math.nan, bad, other
    for parts in ((bad_out, bad_lse, out, lse), (out, lse, bad_out, bad_lse)):
        for merged in backend.merge_attention(*parts):
            nan = merged.cpu().isnan()
            assert nan[1, 0].all() and nan.sum() == nan[1, 0].numel()


@pytest.mark.slow
def test_every_capability():
    """The kernels for lesser CPUs, and those that AMX or dot products of bfloat16 stand in front of; torch reads its
    variable at start."""
    choices = "ATEN_CPU_CAPABILITY", "SPECDEC_AMX", "SPECDEC_AVX512_BF16"
    if any(os.environ.get(choice) for choice in choices):
        pytest.skip("a capability is chosen already")
    selected = "test_block_sizes or test_random or test_int8 or test_mla or test_batch_invariance or test_nan"
    no_amx = {"SPECDEC_AMX": "0"}
    settings = {"ATEN_CPU_CAPABILITY": "default"}, {"ATEN_CPU_CAPABILITY": "avx2"}, no_amx, no_amx | {choices[2]: "0"}
    for setting in settings:
        result = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__, "-k", selected],
            env={**os.environ, **setting},
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, (setting, result.stdout[-3000:])


def before_a_forbidden_page(x):
    """A copy behind whose end no byte can be read."""
    size = x.numel() * x.element_size()
    end = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, end + mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + end), mmap.PAGESIZE, 0) == 0
    return torch.frombuffer(memory, dtype=x.dtype, count=x.numel(), offset=end - size).view(x.shape).copy_(x)


def attend_before_forbidden_pages():
    for d_qk, d_v, nodes, slots in itertools.product((64, 72), (64, 72), (1, 2, 12), (13, 32)):
        for dtype in DTYPES:
            # The last row of the cache is the last one that is seen.
            args, kwargs = make_case([slots - nodes], [nodes], d_qk=d_qk, d_v=d_v, block_size=slots, dtype=dtype)
            args[3].fill_(len(args[1]) - 1)
            kwargs["depth"] = before_a_forbidden_page(kwargs["depth"])
            check(CPU, [*map(before_a_forbidden_page, args)], kwargs)


def test_reads_nothing_past_the_end():
    """In a process that a fault would end. AddressSanitizer does not see what AMX loads."""
    script = "import test_tree_attention; test_tree_attention.attend_before_forbidden_pages()"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]


@without_reference
def test_bad_arguments(backend):
    args, kwargs = make_case([20], [3], heads=8, kv_heads=2)

    def fails(message, position=None, value=None, **changes):
        changed = list(args)
        if position is not None:
            changed[position] = value
        with pytest.raises(ValueError, match=message):
            attend(changed, {**kwargs, **changes}, backend)

    q, k, v, table, _, cu, mask = args
    fails("q: expected dtype float32 or bfloat16 or float16, got float64", 0, q.double())
    fails(r"q: expected shape \[\*, \*, \*\], got", 0, q[0])
    fails(
        r"q: expected a last dimension of stride 1, got shape \[3, 8, 64\] with strides \[512, 1, 8\]",
        0,
        q.transpose(1, 2).contiguous().transpose(1, 2),
    )
    fails("k_cache: expected dtype float32 or int8, got bfloat16", 1, k.bfloat16())
    fails(r"k_cache: expected shape \[\*, \*, \*, 64\], got", 1, k[..., :32])
    fails("v_cache: expected dtype float32, got float16", 2, v.half())
    fails(r"v_cache: expected shape \[4, 16, 2, \*\], got", 2, v[:, :8])
    fails("q: expected a number of heads divisible by the cache's 2, got 7", 0, q[:, :7])
    fails("block_table: expected dtype int32, got int64", 3, table.long())
    fails(r"block_table: expected shape \[1, \*\], got \[2, 2\]", 3, table.expand(2, 2))
    fails(r"cu_nodes: expected shape \[2\], got \[1\]", 5, cu[:1])
    fails(r"mask: expected shape \[3, \*\], got \[2, 1\]", 6, mask[:2])
    fails("mask: expected at least 2 words a row for max_nodes 65, got 1", max_nodes=65)
    fails(r"depth: expected shape \[3\], got \[2\]", depth=torch.zeros(2, dtype=torch.int32))
    fails(r"sinks: expected shape \[8\], got \[2\]", sinks=torch.zeros(2))
    fails("k_scale: only for an int8 cache", k_scale=torch.ones(2))
    fails("window: expected 0 to 2147483647, got -1", window=-1)
    fails("max_nodes: expected 0 to", max_nodes=-1)
    args, kwargs = make_case([20], [3], int8="head")
    fails("v_scale: an int8 cache needs it", v_scale=None)
    fails(r"k_scale: expected shape \[2\], got \[3\]", k_scale=torch.ones(3))
    fails("v_scale: expected per head or per token as k_scale", v_scale=torch.ones(4, 16, 2))
    out, lse = torch.zeros(2, 3, 4, device=backend.device), torch.zeros(2, 3, device=backend.device)
    with pytest.raises(ValueError, match=r"lse_b: expected shape \[2, 3\], got \[2\]"):
        backend.merge_attention(out, lse, out, lse[:, 0])
    with pytest.raises(ValueError, match="out_b: expected dtype float32, got float16"):
        backend.merge_attention(out, lse, out.half(), lse)


@pytest.mark.parametrize("int8", [None, "token"])
def test_opcheck_and_compile(int8):
    args, kwargs = make_case([20, 3], [3, 2], heads=4, kv_heads=2, int8=int8)
    torch.library.opcheck(torch.ops.specdec.tree_attention, tuple(args), kwargs)
    out, lse = attend(args, kwargs)
    torch.library.opcheck(torch.ops.specdec.merge_attention, (out, lse, out, lse))

    def both(*tensors):
        out, lse = specdec_ops.tree_attention(*tensors, **kwargs)
        return specdec_ops.merge_attention(out, lse, out, lse)

    compiled = torch.compile(both, fullgraph=True, backend="aot_eager", dynamic=True)
    for actual, expected in zip(compiled(*args), both(*args), strict=True):
        assert torch.equal(actual, expected)
