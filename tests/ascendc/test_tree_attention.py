"""What only the Ascend C kernels need: splits over cores, borders of tiles and steps, memory traffic, head sizes."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ops.test_tree_attention import DTYPES, TOLERANCE, check, make_case

from .simulator import OPERATORS, device, needs_simulator, on_devices

pytestmark = needs_simulator


class Simulator:
    device = torch.device("cpu")
    tree_attention = staticmethod(getattr(OPERATORS, "tree_attention", None))


@settings(derandomize=True, max_examples=40, deadline=None)
@given(
    requests=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 40)), min_size=0, max_size=4),
    heads=st.sampled_from([(1, 1), (4, 2), (5, 1), (8, 2), (16, 1)]),
    d_qk=st.sampled_from([8, 20, 33, 64, 130]),
    d_v=st.sampled_from([8, 20, 33, 64, 130]),
    block_size=st.sampled_from([1, 3, 16, 100]),
    dtype=st.sampled_from(DTYPES),
    tree=st.booleans(),
    given_depth=st.booleans(),
    window=st.sampled_from([0, 1, 5, 40]),
    softcap=st.sampled_from([0.0, 3.0]),
    sinks=st.booleans(),
    int8=st.sampled_from([None, "head", "token"]),
    seed=st.integers(0, 2**16),
)
def test_random_batches(
    requests, heads, d_qk, d_v, block_size, dtype, tree, given_depth, window, softcap, sinks, int8, seed
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
    kwargs.update(window=window, softcap=softcap)
    if not given_depth:
        kwargs.pop("depth", None)
    if sinks:
        kwargs["sinks"] = torch.randn(heads[0], generator=torch.Generator().manual_seed(seed))
    check(Simulator, args, kwargs)


# Rows of a task and of a product, of both vector cores together: multiples of 16 up to several tasks of several steps.
@on_devices
@pytest.mark.parametrize("nodes", [1, 15, 17, 32, 33, 65, 200])
def test_row_borders(profile, seed, nodes):
    args, kwargs = make_case([130, 5], [nodes, 3], heads=8, kv_heads=2)
    with device(profile, seed):
        check(Simulator, args, kwargs)


@on_devices
@pytest.mark.parametrize("contexts", [(255, 256, 257), (511, 1000, 2100)])
def test_tile_and_split_borders(profile, seed, contexts):
    args, kwargs = make_case(list(contexts), [5, 1, 9], heads=4, kv_heads=1, d_qk=128, dtype=torch.float16)
    with device(profile, seed):
        check(Simulator, args, kwargs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [0, 300])
def test_wide_tiles(dtype, window):
    """A table for a long context makes the tiles wider, whatever the lengths."""
    args, kwargs = make_case([1500, 300], [20, 9], heads=16, kv_heads=2, dtype=dtype)
    table = torch.full((2, 4096), -1, dtype=torch.int32)
    table[:, : args[3].shape[1]] = args[3]
    args[3] = table
    check(Simulator, args, {**kwargs, "window": window})


@pytest.mark.parametrize("nodes", [32, 33])
def test_more_rows_merged_at_once_than_an_instruction_repeats(nodes):
    """Few tasks leave few cores, whose share of the rows fits UB where they are narrow."""
    args, kwargs = make_case([130], [nodes], heads=32, kv_heads=2, d_qk=16, block_size=32)
    check(Simulator, args, {**kwargs, "sinks": torch.full((32,), 0.5)})


@pytest.mark.parametrize("nodes", [4, 90])
def test_batch_invariance(nodes):
    contexts, sizes = [5200, 0, 33], [nodes, 5, 16]
    args, kwargs = make_case(contexts, sizes, heads=4, kv_heads=1, dtype=torch.float16)
    table = args[3]
    kwargs["max_nodes"] = max(sizes)
    whole = []
    for seed in (0, 1):
        with device("910B4", seed) as simulated:
            whole.append(simulated.tree_attention(*args, **kwargs))
    assert all(torch.equal(a, b) for a, b in zip(*whole, strict=True))
    with device("910B4", 0) as simulated:
        for b in range(len(sizes)):
            rows = slice(int(args[5][b]), int(args[5][b + 1]))
            alone = [args[0][rows], args[1], args[2], table[b : b + 1], args[4][b : b + 1]]
            alone += [torch.tensor([0, sizes[b]], dtype=torch.int32), args[6][rows]]
            out, lse = simulated.tree_attention(*alone, **{**kwargs, "depth": kwargs["depth"][rows]})
            assert torch.equal(out, whole[0][0][rows]) and torch.equal(lse, whole[0][1][rows])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("nodes", [2, 40])
def test_nan_stays_in_its_row(dtype, nodes):
    args, kwargs = make_case([50], [nodes], dtype=dtype)
    expected, _ = Simulator.tree_attention(*args, **kwargs)
    args[0][0] = math.nan
    out, lse = Simulator.tree_attention(*args, **kwargs)
    assert out[0].isnan().all() and lse[0].isnan().all()
    assert torch.equal(out[1:], expected[1:])


@pytest.mark.parametrize("int8", [None, "token"])
def test_rows_past_the_end_are_not_read(int8):
    args, kwargs = make_case([70], [5], heads=4, kv_heads=2, dtype=torch.float16, int8=int8)
    expected = Simulator.tree_attention(*args, **kwargs)
    last = int(args[3][0, 75 // 16])
    for tensor in args[1:3] if int8 is None else (kwargs["k_scale"], kwargs["v_scale"]):
        tensor[last, 75 % 16 :] = math.nan
    actual = Simulator.tree_attention(*args, **kwargs)
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


@pytest.mark.parametrize(("nodes", "tile"), [(1, 128), (16, 128), (64, 256)])
def test_keys_and_values_are_read_once(nodes, tile):
    """By all cube cores together, whatever the tree. P comes back to them through L2, Q once a split. They write
    scores once, and the products with values once a tile."""
    context, heads, kv_heads, d = 4096, 8, 2, 128
    args, kwargs = make_case([context], [nodes], heads=heads, kv_heads=kv_heads, d_qk=d, dtype=torch.float16)
    with device("910B4", 0) as simulated:
        out, _ = simulated.tree_attention(*args, **kwargs)
        (launch,) = simulated.launches()
    cube = [core for core in launch["cores"] if core["cube"]]
    assert len(cube) == 20 and all(core["macs"] > 0 for core in cube)
    splits = len(cube) // kv_heads
    cache = 2 * (context + nodes) * kv_heads * d * 2
    rows, columns = -(-nodes * heads // kv_heads // 16) * 16, context + 64
    besides = kv_heads * rows * columns * 2 + splits * args[0].numel() * 2
    read = sum(core["gm_read"] for core in cube) - besides
    assert cache <= read <= 1.05 * cache
    tiles = context // tile + 1
    assert sum(core["gm_written"] for core in cube) == kv_heads * rows * (columns + tiles * d) * 4
    assert (out.double() - torch.ops.specdec.tree_attention(*args, **kwargs)[0].double()).abs().max() <= 2e-3


def test_latent_cache_is_read_once():
    """Values that are a view of the keys do not travel again."""
    context, heads, d = 1024, 16, 576
    args, kwargs = make_case([context], [1], heads=heads, kv_heads=1, d_qk=d, dtype=torch.bfloat16)
    args[2] = args[1][..., :512]
    with device("910B4", 0) as simulated:
        check(Simulator, args, kwargs)
        simulated.launches()
        simulated.tree_attention(*args, **kwargs)
        (launch,) = simulated.launches()
    cube = [core for core in launch["cores"] if core["cube"]]
    cache = (context + 1) * d * 2
    besides = heads * (context + 64) * 2 + len(cube) * args[0].numel() * 2
    read = sum(core["gm_read"] for core in cube) - besides
    assert cache <= read <= 1.05 * cache


@pytest.mark.parametrize("dim", [1, 64, 513, 1100])
@pytest.mark.parametrize("dtype", DTYPES)
def test_merge_attention_of_any_width(dtype, dim):
    generator = torch.Generator().manual_seed(dim)
    out_a, out_b = (torch.randn(37, 3, dim, generator=generator).to(dtype) for _ in range(2))
    lse_a, lse_b = (torch.randn(37, 3, generator=generator) * 4 for _ in range(2))
    expected, expected_lse = torch.ops.specdec.merge_attention(out_a, lse_a, out_b, lse_b)
    out, lse = OPERATORS.merge_attention(out_a, lse_a, out_b, lse_b)
    torch.testing.assert_close(out, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    torch.testing.assert_close(lse, expected_lse)


@pytest.mark.parametrize(("dtype", "d_qk"), [(torch.bfloat16, 960), (torch.float32, 1216)])
def test_widest_keys_of_an_int8_cache(dtype, d_qk):
    args, kwargs = make_case([70], [3], heads=2, kv_heads=1, d_qk=d_qk, d_v=512, dtype=dtype, int8="token")
    check(Simulator, args, kwargs)


def test_head_sizes_that_do_not_fit():
    args, kwargs = make_case([20], [3], heads=2, kv_heads=1, d_qk=64, d_v=513)
    with pytest.raises(ValueError, match="head size of v_cache: expected 1 to 512, got 513"):
        OPERATORS.tree_attention(*args, **kwargs)
    args, kwargs = make_case([20], [3], heads=2, kv_heads=1, d_qk=2048)
    args[2] = args[2][..., :64]
    with pytest.raises(ValueError, match="q: expected a head size of which keys and values fit"):
        OPERATORS.tree_attention(*args, **kwargs)
