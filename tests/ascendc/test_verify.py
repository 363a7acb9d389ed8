"""What only the Ascend C kernels need: borders of chunks, requests past the number of cores, memory traffic. And trials
of losslessness, as many as a simulator makes."""

import pytest
import torch
from ops.test_losslessness import MIXED, Experiment, operator, shape_for
from ops.test_losslessness import each_rule as each_lossless_rule
from ops.verification import OPERATORS, Case, assert_agrees, random_case

from .simulator import device, needs_simulator, on_devices

pytestmark = needs_simulator

each_rule = pytest.mark.parametrize(("operator", "rule"), OPERATORS)
VOCAB = 152_064


@each_rule
@on_devices
def test_borders_of_chunks(operator, rule, profile, seed):
    for vocab in (64, 65, 513, 4097):
        case = random_case(operator, rule, sizes=[5, 3], vocab=vocab, filters=vocab < 100, seed=vocab)
        with device(profile, seed) as simulated:
            assert_agrees(case, simulated, "cpu", decided=0.5)


@each_rule
@pytest.mark.parametrize("far", [-150.0, 22.0, 150.0])
def test_logits_far_from_zero(operator, rule, far):
    """Weights are summed around 0 in those chunks where that does: with 22 in some of them."""
    case = random_case(operator, rule, sizes=[4, 2, 3], vocab=9001, filters=False)
    for logits in (case.target_logits, case.options["draft_logits"]):
        logits += far
        logits[:, :4096] -= 5
        logits[:, 8192:] = -torch.inf
    with device("910B3", 0) as simulated:
        assert_agrees(case, simulated, "cpu", decided=0.5)


@pytest.mark.parametrize("rule", ["rejection", "block", "typical", "strict"])
@pytest.mark.parametrize("filters", [True, False])
def test_more_rows_than_are_combined_or_asked_for_at_once(rule, filters):
    case = random_case("verify_chain", rule, sizes=[40, 12], vocab=600, filters=filters)
    with device("910B3", 0) as simulated:
        assert_agrees(case, simulated, "cpu", decided=0.5)


@each_rule
def test_a_request_does_not_depend_on_device_order_or_batch(operator, rule):
    for vocab, copies in [(65, 17), (4097, 1)]:  # 51 requests are more than there are cores
        case = random_case(operator, rule, sizes=[5, 1, 4], vocab=vocab)
        with device("910B3", 0) as simulated:
            alone = [case.select([b])(simulated) for b in range(3)]
        for profile, seed in [("910B1", 1), ("910B4", 2)]:
            with device(profile, seed) as simulated:
                batch = case.select([0, 1, 2] * copies)(simulated)
            for name, x in batch.items():
                for b in range(3 * copies):
                    expected = alone[b % 3][name][0]
                    assert torch.equal(x[b][: expected.numel()] if x.dim() > 1 else x[b], expected)


@pytest.mark.parametrize("operator", ["verify_chain", "verify_tree"])
def test_more_requests_than_the_cores_look_after_at_a_time(operator):
    rule = {"verify_chain": "rejection", "verify_tree": "recursive"}[operator]
    case = random_case(operator, rule, sizes=[3, 1, 2] * 54, vocab=16, filters=False)  # 40 cores look after 160
    with device("910B3", 0) as simulated:
        assert_agrees(case, simulated, "cpu", decided=0.5)


def traffic(case: Case, needed_rows: int) -> float:
    """What a call reads as a multiple of the needed rows once and two rows a request."""
    with device("910B3", 0) as simulated:
        out = case(simulated)
        (launch,) = simulated.launches()
    expected = case(torch.ops.specdec)
    assert torch.equal(out["tokens"], expected["tokens"])
    row = VOCAB * case.target_logits.element_size()
    assert launch["gm_first_touch"] <= 1.02 * needed_rows * row
    return launch["gm_read"] / ((needed_rows + 2 * len(out["tokens"])) * row)


@pytest.mark.parametrize("rule", ["rejection", "strict", "block"])
@pytest.mark.parametrize("random_drafts", [True, False])
@pytest.mark.parametrize(("batch", "dtype"), [(1, torch.float32), (2, torch.bfloat16)], ids=str)
def test_traffic_of_a_chain(rule, random_drafts, batch, dtype):
    case = random_case(
        "verify_chain",
        rule,
        sizes=[4] * batch,
        vocab=VOCAB,
        dtype=dtype,
        random_drafts=random_drafts,
        filters=False,
    )
    drafts = 3 * batch if random_drafts and rule != "strict" else 0
    assert traffic(case, 4 * batch + drafts) <= (1.10 if rule != "block" else 1.6)  # a draft that fails costs two rows


@pytest.mark.parametrize("rule", ["rejection", "strict"])
def test_a_long_chain_is_not_read_to_its_end(rule):
    case = random_case("verify_chain", rule, sizes=[20] * 4, vocab=VOCAB, random_drafts=False, filters=False)
    case.target_logits[torch.arange(80), case.tokens.roll(-1)] = -torch.inf  # the first draft is rejected
    ahead = 6  # rows of 608 KB that four requests read together: 12 MB
    assert traffic(case, 4 * ahead) <= 1.10


@pytest.mark.parametrize("rule", ["rejection", "block", "typical"])
def test_padding_of_a_chain_is_not_read(rule):
    case = random_case("verify_chain", rule, sizes=[6] * 2, vocab=VOCAB, random_drafts=False, filters=False)
    case.tokens.view(2, 6)[:, 2:] = -1
    assert traffic(case, 2 * 2) <= 1.10


def cycles_of_an_accepted_chain(rule: str, size: int, vocab: int, **filters: torch.Tensor) -> float:
    case = random_case("verify_chain", rule, sizes=[size], vocab=vocab, filters=False)
    case.options["draft_logits"] = case.target_logits.clone()
    case.options["draft_temperature"] = case.options["temperature"]
    case.options |= filters
    case.tokens[1:] = case.target_logits[:-1].argmax(1)
    with device("910B3", 0) as simulated:
        assert case(simulated)["num_accepted"].item() == size - 1
        (launch,) = simulated.launches()
    return launch["cycles"]


def test_a_batch_whose_drafts_are_all_accepted():
    case = random_case("verify_chain", "rejection", sizes=[4] * 3, vocab=700, filters=False)
    case.options["draft_logits"] = case.target_logits.clone()
    case.options["draft_temperature"] = case.options["temperature"] = torch.ones(3)
    case.tokens[:] = case.target_logits.argmax(1).roll(1)
    with device("910B3", 0) as simulated:
        assert case(simulated)["num_accepted"].tolist() == [3] * 3
        assert_agrees(case, simulated, "cpu", decided=0.5)


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_rows_of_a_chain_that_take_several_passes_go_through_them_together(rule):
    filters = {"top_k": torch.tensor([50], dtype=torch.int32), "top_p": torch.tensor([0.95])}
    one, five = (cycles_of_an_accepted_chain(rule, size, 9001, **filters) for size in (1, 5))
    assert five < 3 * one


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_rows_past_those_asked_for_in_a_round_are_asked_for_together(rule):
    all_fit, two_rounds = (cycles_of_an_accepted_chain(rule, size, 500) for size in (32, 64))
    assert two_rounds < 3 * all_fit


@pytest.mark.parametrize(("rule", "random_drafts"), [("target_only", True), ("recursive", False)])
def test_a_tree_reads_the_rows_of_its_path(rule, random_drafts):
    case = random_case("verify_tree", rule, sizes=[30], vocab=VOCAB, random_drafts=random_drafts, filters=False)
    path = case(torch.ops.specdec)["path"]
    assert traffic(case, int((path >= 0).sum())) <= 1.10


def test_all_cores_share_the_rows_of_one_request():
    case = random_case("verify_chain", "rejection", sizes=[6], vocab=VOCAB, random_drafts=False, filters=False)
    with device("910B3", 0) as simulated:
        case(simulated)
        (launch,) = simulated.launches()
    shares = [core["gm_read"] for core in launch["cores"] if not core["cube"]]
    assert sum(share >= 0.8 * 6 * VOCAB * 4 / 40 for share in shares) >= 0.8 * 40


@pytest.mark.slow
@each_lossless_rule
@pytest.mark.parametrize("options", [{"settings": MIXED, "trials": 700}, {"likeness": 0.5, "trials": 6000}], ids=str)
def test_lossless(rule, options):
    with device("910B3", 0) as simulated:
        assert min(Experiment(shape_for(rule), rule, **options).p_values(operator(simulated, rule))) > 1e-4


@each_lossless_rule
def test_a_uniform_used_twice_is_rejected(rule):
    with device("910B3", 0) as simulated:

        def verify(*inputs, **options):
            *first, uniforms = inputs
            uniforms[:, 0] = uniforms[:, 1]
            return operator(simulated, rule)(*first, uniforms, **options)

        assert Experiment([-1, 0], rule, trials=4000).p_values(verify)[0] < 1e-12


def test_limits():
    case = random_case("verify_chain", "rejection", sizes=[3], vocab=13)
    case.max_nodes, case.uniforms = 8193, torch.rand(1, 8193)
    with device("910B3", 0) as simulated, pytest.raises(ValueError, match="max_nodes: expected 1 to 8192, got 8193"):
        case(simulated)
