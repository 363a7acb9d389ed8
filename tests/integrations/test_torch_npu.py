"""torch_npu's layouts of attention, against dense attention."""

import pytest
import torch

from specdec_ops import tree_mask
from specdec_ops.integrations.torch_npu import npu_fused_infer_attention_score

PAGE, HEADS, KV_HEADS, DIM = 4, 4, 2, 8
CANDIDATES, KV_LENS = [3, 3, 3], [12, 3, 10]


class Case:
    """Pages in random order, `[blocks, block_size, H_kv, D]`, and what attention over them must give."""

    def __init__(self, candidates: list[int], kv_lens: list[int]) -> None:
        generator = torch.Generator().manual_seed(4)
        self.candidates, self.kv_lens = candidates, kv_lens
        blocks, width = 30, max(-(-n // PAGE) for n in kv_lens)
        self.k, self.v = torch.randn(2, blocks, PAGE, KV_HEADS, DIM, generator=generator)
        self.table = torch.randperm(blocks, generator=generator)[: len(kv_lens) * width].view(-1, width).int()
        self.q = torch.randn(sum(candidates), HEADS, DIM, generator=generator)

    def dense(self, sees: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """`sees[b]`: bool `[candidates, kv_len]`."""
        outs, lses = [], []
        for q, visible, row, length in zip(self.q.split(self.candidates), sees, self.table, self.kv_lens, strict=True):
            k, v = (
                x[row.long()].flatten(0, 1)[:length].repeat_interleave(HEADS // KV_HEADS, 1) for x in (self.k, self.v)
            )
            scores = torch.einsum("nhd,shd->nhs", q, k) * 0.3
            scores = scores.masked_fill(~visible[:, None], -torch.inf)
            outs.append(torch.einsum("nhs,shd->nhd", scores.softmax(-1), v))
            lses.append(scores.logsumexp(-1))
        return torch.cat(outs), torch.cat(lses)

    def chains(self, window: int | None = None) -> list[torch.Tensor]:
        sees = []
        for n, length in zip(self.candidates, self.kv_lens, strict=True):
            query, key = torch.arange(length - n, length)[:, None], torch.arange(length)
            sees.append((key <= query) & ((query - key <= window) if window is not None else True))
        return sees

    def with_nodes(self, nodes: list[torch.Tensor]) -> list[torch.Tensor]:
        return [
            torch.cat([torch.ones(n, length - n, dtype=torch.bool), own], 1)
            for n, length, own in zip(self.candidates, self.kv_lens, nodes, strict=True)
        ]


def close(given: tuple[torch.Tensor, torch.Tensor], wanted: tuple[torch.Tensor, torch.Tensor]) -> None:
    torch.testing.assert_close(given[0], wanted[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(given[1][..., 0], wanted[1], atol=1e-5, rtol=1e-5)


def call(case: Case, query: torch.Tensor, layout: str, **options):
    return npu_fused_infer_attention_score(
        query,
        case.k.flatten(2),
        case.v.flatten(2),
        block_table=case.table,
        num_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        scale=0.3,
        input_layout=layout,
        softmax_lse_flag=True,
        **options,
    )


@pytest.mark.parametrize("lengths", [torch.tensor, list, lambda x: torch.tensor(x, dtype=torch.int32)])
@pytest.mark.parametrize("window", [None, 4])
def test_chains_with_lengths_on_the_device(lengths, window):
    case = Case([3, 5, 1], [12, 5, 7])
    given = call(
        case,
        case.q,
        "TND",
        actual_seq_lengths=lengths([3, 8, 9]),
        actual_seq_lengths_kv=lengths(case.kv_lens),
        sparse_mode=3 if window is None else 4,
        **({} if window is None else {"pre_tokens": window}),
    )
    close(given, case.dense(case.chains(window)))


@pytest.mark.parametrize("layout", ["BSH", "BSND", "BNSD"])
def test_padded_layouts(layout):
    case = Case(CANDIDATES, KV_LENS)
    query = case.q.view(3, 3, HEADS, DIM)
    query = {"BSH": query.flatten(2), "BSND": query, "BNSD": query.transpose(1, 2).contiguous()}[layout]
    out, lse = call(case, query, layout, actual_seq_lengths_kv=torch.tensor(KV_LENS), sparse_mode=3)
    assert out.shape == query.shape and lse.shape == (3, HEADS, 3, 1)
    out = out.transpose(1, 2) if layout == "BNSD" else out
    close((out.reshape(9, HEADS, DIM), lse.transpose(1, 2).flatten(0, 1)), case.dense(case.chains()))


@pytest.mark.parametrize("lengths", [torch.tensor, list])
@pytest.mark.parametrize("sparse_mode", [0, 3])
def test_padded_layouts_with_fewer_candidates(lengths, sparse_mode):
    case = Case([3, 1, 2], [12, 3, 10])
    for row, length in zip(case.table.long(), case.kv_lens, strict=True):  # what nobody has written may be anything
        for cache in (case.k, case.v):
            unwritten = cache[row].flatten(0, 1).index_fill(0, torch.arange(length, row.numel() * PAGE), torch.nan)
            cache[row] = unwritten.unflatten(0, (-1, PAGE))
    query = torch.full((3, 3, HEADS, DIM), 9.0)
    is_candidate = torch.arange(3) < torch.tensor(case.candidates)[:, None]
    query[is_candidate] = case.q
    out, lse = call(
        case,
        query,
        "BSND",
        actual_seq_lengths=lengths(case.candidates),
        actual_seq_lengths_kv=lengths(case.kv_lens),
        sparse_mode=sparse_mode,
    )
    sees = case.chains() if sparse_mode == 3 else case.with_nodes([torch.ones(n, n).bool() for n in case.candidates])
    close((out[is_candidate], lse.transpose(1, 2)[is_candidate]), case.dense(sees))
    assert (out[~is_candidate] == 0).all()


@pytest.mark.parametrize("form", ["bits", "[B,Q,S]", "[B,1,Q,S]", "none"])
def test_trees(form):
    case = Case([4, 6, 1], [9, 6, 8])
    parents = torch.tensor([-1, 0, 0, 1, -1, 0, 1, 0, 3, 2, -1], dtype=torch.int32)
    words, _ = tree_mask(parents, torch.tensor([0, 4, 10, 11], dtype=torch.int32), 6)
    own = [((row >> torch.arange(n)) & 1).bool() for row, n in zip(words.split([4, 6, 1]), [4, 6, 1], strict=True)]
    if form == "none":
        own = [torch.ones_like(x) for x in own]
    sees = case.with_nodes(own)
    mask = words
    if form.startswith("["):
        mask = torch.ones(3, 6, 12, dtype=torch.bool)
        for hidden, visible in zip(mask, sees, strict=True):
            hidden[: visible.shape[0], : visible.shape[1]] = ~visible
        mask = mask[:, None] if form == "[B,1,Q,S]" else mask
    given = call(
        case,
        case.q,
        "TND",
        atten_mask=None if form == "none" else mask,
        actual_seq_lengths=torch.tensor([4, 10, 11]),
        actual_seq_lengths_kv=torch.tensor(case.kv_lens),
    )
    close(given, case.dense(sees))


def test_one_mask_for_all_and_heads_before_pages():
    case = Case(CANDIDATES, [7, 7, 7])
    own = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]]).bool()
    sees = case.with_nodes([own] * 3)
    out, lse = npu_fused_infer_attention_score(
        case.q,
        case.k.transpose(1, 2).contiguous(),
        case.v.transpose(1, 2).contiguous(),
        atten_mask=~sees[0],
        actual_seq_lengths=[3, 6, 9],
        actual_seq_lengths_kv=[7, 7, 7],
        block_table=case.table,
        num_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        scale=0.3,
        input_layout="TND",
    )
    torch.testing.assert_close(out, case.dense(sees)[0], atol=1e-5, rtol=1e-5)
    assert lse.tolist() == [0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sparse_mode": 2}, "sparse_mode: expected 0, 3 or 4, got 2"),
        ({"input_layout": "SBH"}, "input_layout: expected TND, BSH, BSND or BNSD, got SBH"),
        ({"actual_seq_lengths": None}, "actual_seq_lengths: expected with the layout TND"),
        ({"antiquant_mode": 1}, "antiquant_mode: expected 0, nothing else is served; got 1"),
        ({"query_rope": torch.ones(1)}, "query_rope: expected None, nothing else is served; got a tensor"),
    ],
)
def test_what_is_not_served(changes, message):
    case = Case(CANDIDATES, KV_LENS)
    options = {"input_layout": "TND", "actual_seq_lengths": [3, 6, 9], "sparse_mode": 3, "num_heads": HEADS} | changes
    with pytest.raises(ValueError, match=message):
        npu_fused_infer_attention_score(
            case.q, case.k, case.v, block_table=case.table, actual_seq_lengths_kv=KV_LENS, **options
        )


def test_arguments_that_ask_for_nothing():
    case = Case(CANDIDATES, KV_LENS)
    options = {"actual_seq_lengths": [3, 6, 9], "actual_seq_lengths_kv": KV_LENS, "sparse_mode": 3}
    plain = call(case, case.q, "TND", **options)
    given = call(case, case.q, "TND", **options, antiquant_mode=0, key_antiquant_mode=0, quant_scale1=None)
    assert torch.equal(plain[0], given[0])
    with pytest.raises(TypeError, match="quant_scale9: no such argument"):
        call(case, case.q, "TND", **options, quant_scale9=None)
