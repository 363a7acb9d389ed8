"""What only the Ascend C kernels need: borders of chunks, requests past the number of cores, memory traffic."""

import pytest
import torch
from ops.test_sample import DTYPES, random_options, rows_of_all_kinds

import specdec_ops
import specdec_ops.reference as reference

from .simulator import device, needs_simulator, on_devices

pytestmark = needs_simulator

BORDERS = [63, 64, 65, 511, 512, 513, 4095, 4096, 4097, 8193]


def options_of(rows: int, vocab: int, filters: bool) -> dict[str, torch.Tensor]:
    options = random_options(rows, vocab)
    return options if filters else {"temperature": options["temperature"]}


@on_devices
@pytest.mark.parametrize("vocab", BORDERS)
def test_borders_of_chunks(profile, seed, vocab):
    dtype = DTYPES[vocab % 3]
    rows = rows_of_all_kinds(vocab, dtype)[:4]
    uniforms = torch.rand(4, generator=torch.Generator().manual_seed(vocab))
    options = options_of(4, vocab, filters=vocab % 2 == 0)
    with device(profile, seed) as simulated:
        token, logprob, status = simulated.sample(rows, uniforms, **options)
        tokens, _ = simulated.sample_topk(rows, None, 3, **options)
    below, above = (reference.sample(rows, (uniforms + hair).clamp(0, 1), **options)[0] for hair in (-2e-5, 2e-5))
    assert ((below <= token) & (token <= above)).all() and not status.any()
    assert tokens.equal(reference.sample_topk(rows, None, 3, **options)[0])
    assert (logprob <= 1e-5).all()


@pytest.mark.parametrize("far", [60.0, 75.0, 90.0])
def test_a_chunk_whose_weights_underflow_is_not_drawn_from(far):
    """Its sum around 0 is enough to be kept, and its mass next to the other chunk's may still be positive."""
    row = torch.full((1, 8192), -30.0)
    row[:, 4096:] = far
    with device("910B3", 0) as simulated:
        token, logprob, status = simulated.sample(row, torch.zeros(1))
    assert (token.item(), status.item()) == (4096, 0)
    torch.testing.assert_close(logprob, torch.tensor([1 / 4096]).log(), atol=3e-5, rtol=1e-5)


@pytest.mark.parametrize("vocab", [65, 4097])
def test_a_row_does_not_depend_on_device_order_or_batch(vocab):
    rows = rows_of_all_kinds(vocab, torch.float32)[:4].repeat(26, 1)  # more rows than cores
    uniforms = torch.rand(4, 3, generator=torch.Generator().manual_seed(0)).repeat(26, 1)
    options = {name: x.repeat(26) for name, x in random_options(4, vocab).items()}

    def outputs(simulated, batch):
        mine = {name: x[batch] for name, x in options.items()}
        return [
            *simulated.sample(rows[batch], uniforms[batch, 0].contiguous(), **mine),
            *simulated.sample_topk(rows[batch], uniforms[batch], 3, **mine),
            *simulated.sample_topk(rows[batch], None, 3, **mine),
        ]

    with device("910B3", 0) as simulated:
        alone = [outputs(simulated, [i]) for i in range(4)]
    for profile, seed, count in [("910B1", 1, 104 if vocab == 65 else 8), ("910B4", 2, 4)]:
        with device(profile, seed) as simulated:
            found = outputs(simulated, list(range(count)))
        for which, x in enumerate(found):
            assert all(torch.equal(x[i], alone[i % 4][which][0]) for i in range(count))


@pytest.mark.parametrize(("dtype", "width"), [(torch.float32, 4), (torch.bfloat16, 2), (torch.float16, 2)], ids=str)
def test_traffic(dtype, width):
    """Without filters a row is read once, and the chunk of the token again."""
    vocab, batch = 152_064, 5
    rows = (3 * torch.randn(batch, vocab, generator=torch.Generator().manual_seed(0))).to(dtype)
    uniforms = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9])
    with device("910B3", 0) as simulated:
        token, _, _ = simulated.sample(rows, uniforms)
        (launch,) = simulated.launches()
    floor = rows.numel() * width
    assert floor <= launch["gm_read"] <= 1.12 * floor  # with what the cores tell each other
    assert launch["gm_first_touch"] <= 1.02 * floor
    # 190 chunks over 40 cores: all but two have 5, one of which may be the short one at the end of a row.
    shares = [core["gm_read"] for core in launch["cores"] if not core["cube"]]
    assert sum(share >= 0.8 * floor / 40 for share in shares) == 38
    assert token.equal(specdec_ops.sample(rows, uniforms)[0])


def test_more_chunks_than_a_repeat_has_lanes():
    rows = 3 * torch.randn(1, 300_001, generator=torch.Generator().manual_seed(0))
    options = {"top_k": torch.tensor([40], dtype=torch.int32), "top_p": torch.tensor([0.9])}
    for u in (0.0, 0.4, 0.99):
        uniforms = torch.tensor([u])
        with device("910B4", 0) as simulated:
            plain, filtered = simulated.sample(rows, uniforms), simulated.sample(rows, uniforms, **options)
        for actual, expected in [
            (plain, specdec_ops.sample(rows, uniforms)),
            (filtered, specdec_ops.sample(rows, uniforms, **options)),
        ]:
            assert actual[0].equal(expected[0]) and actual[2].equal(expected[2])
            torch.testing.assert_close(actual[1], expected[1])


def test_limits():
    with device("910B3", 0) as simulated:
        with pytest.raises(ValueError, match="logits: expected at most 2097152 columns, got"):
            simulated.sample(torch.zeros(1, 2_097_153), torch.zeros(1))
        with pytest.raises(ValueError, match="k: expected 1 to 8192, got 8193"):
            simulated.sample_topk(torch.zeros(1, 9000), None, 8193)
