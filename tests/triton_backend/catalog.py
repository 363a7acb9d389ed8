"""Every launch that production shapes make: operators called on meta tensors while the launches are recorded.

So what is compiled is what the launchers would run, block sizes and constants included, and a kernel cannot be
forgotten: the names of the package's kernels are compared.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from launches import Specialization, kernel_names, specialize
from torch import Tensor
from triton.runtime.jit import JITFunction

import specdec_ops.triton as operators
from specdec_ops.triton import runtime

VOCABS = (32000, 151936)  # Llama 2; Qwen 2.5 and 3
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def _ints(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.int32, device="meta")


def _longs(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.int64, device="meta")


def _floats(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _calls() -> Iterator[Callable[[], Any]]:
    batch, nodes = 4, 8
    for n in (5, 64, 1024):
        yield lambda n=n: operators.philox_uniform(_longs(batch), _longs(batch), n, 1)

    table, lens, cu = _ints(batch, 16), _ints(batch), _ints(batch + 1)
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        for heads, size in ((8, 128), (1, 576)):  # GQA; MLA's latent row
            k, cache = _floats(32, heads, size, dtype=dtype), _floats(64, 128, heads, size, dtype=dtype)
            fused = _floats(32, heads, 2 * size, dtype=dtype)[..., :size]
            yield lambda k=k, cache=cache: operators.kv_append(k, k, cache, cache, table, lens, cu)
            yield lambda k=fused, cache=cache: operators.kv_append(k, k, cache, cache, table, lens, cu)
            yield lambda cache=cache: operators.kv_rollback([cache] * 4, table, lens, lens, _ints(batch, nodes))
    yield lambda: operators.kv_truncate(lens, lens)
    yield lambda: operators.blocks_reserve(table, _ints(64), _ints(1), lens, lens, 128)
    yield lambda: operators.blocks_release(table, _ints(64), _ints(1), lens, 128)

    yield lambda: operators.tree_mask(_ints(batch * 64), cu, 64)
    yield lambda: operators.tree_select(_longs(batch, 64), _floats(batch, 64), _ints(batch, 64), 32)
    yield lambda: operators.ngram_propose(_longs(batch, 4096), lens, min_n=1, max_n=4, num_draft=8)
    yield lambda: operators.advance(
        _longs(batch, 4096), lens, _floats(batch, dtype=torch.bool), _longs(batch, nodes), lens, _longs(2), lens
    )
    yield lambda: operators.adapt_draft_length(_floats(batch), lens, lens)

    scale = {"k_scale": _floats(8), "v_scale": _floats(8)}
    for dtype in FLOATS:
        for heads, kv_heads, size in ((32, 8, 128), (16, 16, 64)):  # GQA, MHA; MLA's 576 do not fit the unified buffer
            q = _floats(batch * 16, heads, size, dtype=dtype)
            cache = _floats(64, 128, kv_heads, size, dtype=dtype)
            for mask in (None, _longs(batch * 16, 1)):
                yield lambda q=q, cache=cache, mask=mask: operators.tree_attention(
                    q, cache, cache, table, lens, cu, mask, scale=0.1, max_nodes=16
                )
        q, cache = _floats(batch * 16, 32, 128, dtype=dtype), _floats(64, 128, 8, 128, dtype=dtype)
        quantised = cache.to(torch.int8)
        for keys, options in (
            (cache, {"window": 4096}),
            (cache, {"softcap": 50.0}),
            (cache, {"window": 128, "sinks": _floats(32)}),
            (quantised, scale),  # scales per token do not fit (docs/triton-ascend.md)
        ):
            yield lambda q=q, keys=keys, options=options: operators.tree_attention(
                q, keys, keys, table, lens, cu, _longs(batch * 16, 1), scale=0.1, max_nodes=16, **options
            )
    out, lse = _floats(batch * 16, 32, 128, dtype=torch.bfloat16), _floats(batch * 16, 32)
    yield lambda: operators.merge_attention(out, lse, out, lse)

    filters = {"temperature": _floats(batch), "top_k": _ints(batch), "top_p": _floats(batch), "min_p": _floats(batch)}
    for vocab in VOCABS:
        for dtype in FLOATS:
            logits = _floats(batch, vocab, dtype=dtype)
            yield lambda logits=logits: operators.sample(logits, _floats(batch), **filters)
            if dtype != torch.float32:
                continue  # the dtype only changes how a block is loaded, which `sample` has shown
            yield lambda logits=logits: operators.sample(logits, _floats(batch))
            yield lambda logits=logits: operators.sample_topk(logits, None, 4)
            yield lambda logits=logits: operators.sample_topk(logits, _floats(batch, 4), 4, temperature=_floats(batch))
            rows = _floats(batch * nodes, vocab, dtype=dtype)
            common = (rows, _longs(batch * nodes))
            for rule in ("rejection", "block", "strict", "typical"):
                for draft in (None, rows) if rule in ("rejection", "block") else (None,):
                    yield lambda common=common, rule=rule, draft=draft: operators.verify_chain(
                        *common, cu, _floats(batch, nodes), draft_logits=draft, **filters, rule=rule, max_nodes=nodes
                    )
            for rule in ("target_only", "recursive", "traversal", "typical"):
                for draft in (None, rows) if rule in ("recursive", "traversal") else (None,):
                    yield lambda common=common, rule=rule, draft=draft: operators.verify_tree(
                        *common,
                        _ints(batch * nodes),
                        cu,
                        _floats(batch, 64),
                        draft_logits=draft,
                        draft_temperature=None if draft is None else _floats(batch),
                        **filters,
                        rule=rule,
                        max_nodes=64,
                    )


def specializations(device: runtime.Device) -> dict[str, Specialization]:
    """By key, what the launches of all calls compile on such a device."""
    found: dict[str, Specialization] = {}

    def record(self: JITFunction, *args: Any, grid: Any, warmup: bool, **constants: Any) -> None:
        specialization = specialize(self, args, constants)
        found[specialization.key] = specialization

    original_run, original_device = JITFunction.run, runtime._device
    JITFunction.run, runtime._device = record, lambda kind, index: device
    try:
        for call in _calls():
            call()
    finally:
        JITFunction.run, runtime._device = original_run, original_device
    missing = kernel_names() - {specialization.name for specialization in found.values()}
    assert not missing, f"no call of the catalogue launches {sorted(missing)}"
    return found
