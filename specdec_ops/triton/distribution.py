"""From rows of logits to the distributions that are sampled and verified.

A row's distribution is never stored. Two kernels reduce each row to a record of eight float32 numbers, from which any
block of probabilities can be computed again:

`chunk_statistics_kernel` streams every row once, spread over all cores in chunks of `BLOCK`; `row_records_kernel`
combines a row's chunks and, where there are filters, finds the threshold that they amount to by bisection.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdec_ops.ops import status as bits
from specdec_ops.triton.runtime import device_of, launch

# Fields of the record of a row, and of a chunk of it.
MAXIMUM = tl.constexpr(0)  # of the logits, NaN and +inf left out
TOTAL = tl.constexpr(1)  # sum of w = exp((x - maximum) / temperature), where x >= threshold
ENTROPY = tl.constexpr(2)  # sum of w * (x - maximum) / temperature
ARGMAX = tl.constexpr(3)  # lowest id of the maximum, exact in a float32 below 2**24
STATUS = tl.constexpr(4)  # status bits of the row
SCALE = tl.constexpr(5)  # 1 / temperature
THRESHOLD = tl.constexpr(6)  # logits below it have no mass
ONE_HOT = tl.constexpr(
    7
)  # above 0: all mass is at the argmax, for want of a distribution, or (GREEDY) of a temperature
GREEDY = tl.constexpr(2)
BAD = tl.constexpr(4)  # of a chunk, 1: there is a NaN or +inf
FIELDS = tl.constexpr(8)
MAX_VOCAB = 1 << 24

# Status bits, as floats of a record.
NOT_FINITE = tl.constexpr(float(bits.NOT_FINITE))
NO_FINITE_LOGIT = tl.constexpr(float(bits.NO_FINITE_LOGIT))

POINT = tl.constexpr(16)  # lanes for the probability of one token
INFINITY = tl.constexpr(float("inf"))


@triton.jit
def nodes_of(cu_nodes, b, total, max_nodes):
    """First row and number of request `b`'s nodes; a request with a malformed range has none."""
    begin = tl.load(cu_nodes + b)
    end = tl.load(cu_nodes + b + 1)
    valid = (begin >= 0) & (begin <= end) & (end <= total)
    return begin, tl.where(valid, tl.minimum(end - begin, max_nodes), 0), valid


@triton.jit
def inverse_temperature(temperature, b):
    """1 / temperature, and whether the request is greedy: temperature 0, or no number above it."""
    if temperature is None:
        return 1.0, False
    else:
        t = tl.load(temperature + b).to(tl.float32)
        greedy = (t > 0) == 0
        return tl.where(greedy, 1.0, tl.minimum(1.0 / tl.where(greedy, 1.0, t), 1e30)), greedy


@triton.jit
def _field(record, lanes, field: tl.constexpr):
    return tl.sum(tl.where(lanes == field, record, 0.0), 1)


@triton.jit
def _record(lanes, maximum, total, entropy, argmax, bad_or_status, scale, threshold, one_hot):
    record = tl.where(lanes == MAXIMUM, maximum, 0.0)
    record = tl.where(lanes == TOTAL, total, record)
    record = tl.where(lanes == ENTROPY, entropy, record)
    record = tl.where(lanes == ARGMAX, argmax, record)
    record = tl.where(lanes == STATUS, bad_or_status, record)
    record = tl.where(lanes == SCALE, scale, record)
    record = tl.where(lanes == THRESHOLD, threshold, record)
    return tl.where(lanes == ONE_HOT, one_hot, record)


@triton.jit
def chunk_statistics_kernel(
    logits,
    row_stride,
    vocab,
    cu_nodes,
    num_rows,
    max_nodes,
    temperature,
    chunk_records,
    tasks,
    chunks,
    BLOCK: tl.constexpr,
):
    for task in range(tl.program_id(0), tasks, tl.num_programs(0)):
        slot = task // chunks
        b = slot // max_nodes
        node = slot % max_nodes
        begin, n, _valid = nodes_of(cu_nodes, b, num_rows, max_nodes)
        if node < n:
            ids = (task % chunks) * BLOCK + tl.arange(0, BLOCK)
            row = logits + tl.cast(begin + node, tl.int64) * row_stride
            x = tl.load(row + ids, mask=ids < vocab, other=-INFINITY).to(tl.float32)
            bad = tl.max(tl.where(x < INFINITY, 0.0, 1.0), 0)
            x = tl.where(x < INFINITY, x, -INFINITY)
            maximum = tl.max(x, 0)
            argmax = tl.min(tl.where(x == maximum, ids, vocab), 0)
            scale, _greedy = inverse_temperature(temperature, b)
            scaled = tl.maximum((x - tl.where(maximum > -INFINITY, maximum, 0.0)) * scale, -1e30)  # 0 * -inf is NaN
            w = tl.exp(scaled)
            lanes = tl.arange(0, FIELDS)
            record = _record(
                lanes,
                maximum,
                tl.sum(w, 0),
                tl.sum(w * scaled, 0),
                argmax.to(tl.float32),
                bad,
                0.0,
                0.0,
                0.0,
            )
            tl.store(chunk_records + tl.cast(task, tl.int64) * FIELDS + lanes, record)


@triton.jit
def _float_of(key):
    """Integers in the order of the floats whose bits they are."""
    return tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)


@triton.jit
def _highest_threshold(
    row, vocab, chunks, floor, maximum, scale, wanted, COUNT: tl.constexpr, steps, BLOCK: tl.constexpr
):
    """The highest t for which the logits x >= t (and >= floor) are at least `wanted` in number or mass."""
    low = -2139095041  # -inf, which everything reaches
    high = 2139095040  # +inf, which nothing does
    for _step in range(0, steps):
        middle = (low & high) + ((low ^ high) >> 1)  # the mean, without overflow
        t = _float_of(middle)
        reached = 0.0
        for chunk in range(0, chunks):
            ids = chunk * BLOCK + tl.arange(0, BLOCK)
            x = tl.load(row + ids, mask=ids < vocab, other=-INFINITY).to(tl.float32)
            if COUNT:
                w = 1.0
            else:
                w = tl.exp(tl.maximum((x - maximum) * scale, -1e30))
            reached += tl.sum(tl.where((x >= t) & (x >= floor) & (ids < vocab), w, 0.0), 0)
        if reached >= wanted:
            low = middle
        else:
            high = middle
    return _float_of(low)


@triton.jit
def _mass(row, vocab, chunks, threshold, maximum, scale, BLOCK: tl.constexpr):
    total = 0.0
    entropy = 0.0
    for chunk in range(0, chunks):
        ids = chunk * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(row + ids, mask=ids < vocab, other=-INFINITY).to(tl.float32)
        scaled = tl.maximum((x - maximum) * scale, -1e30)
        w = tl.where((x >= threshold) & (ids < vocab), tl.exp(scaled), 0.0)
        total += tl.sum(w, 0)
        entropy += tl.sum(w * scaled, 0)
    return total, entropy


@triton.jit
def row_records_kernel(
    logits,
    row_stride,
    vocab,
    cu_nodes,
    num_rows,
    max_nodes,
    temperature,
    top_k,
    top_p,
    min_p,
    chunk_records,
    records,
    slots,
    chunks,
    CHUNKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # The chunks are the same in both kernels; CHUNKS is their number rounded up to a power of two.
    for slot in range(tl.program_id(0), slots, tl.num_programs(0)):
        b = slot // max_nodes
        node = slot % max_nodes
        begin, n, _valid = nodes_of(cu_nodes, b, num_rows, max_nodes)
        if node < n:
            lanes = tl.arange(0, FIELDS)
            index = tl.arange(0, CHUNKS)
            offsets = index[:, None] * FIELDS + lanes[None, :]
            chunk = tl.load(
                chunk_records + tl.cast(slot, tl.int64) * chunks * FIELDS + offsets,
                mask=offsets < chunks * FIELDS,
                other=0.0,
            )
            maxima = tl.where(index < chunks, _field(chunk, lanes[None, :], MAXIMUM), -INFINITY)
            maximum = tl.max(maxima, 0)
            argmax = tl.min(tl.where(maxima == maximum, _field(chunk, lanes[None, :], ARGMAX), INFINITY), 0)
            bad = tl.max(_field(chunk, lanes[None, :], BAD), 0)
            scale, greedy = inverse_temperature(temperature, b)
            sound = (bad == 0.0) & (maximum > -INFINITY)
            shift = tl.where(sound, maximum, 0.0)
            delta = tl.maximum((tl.minimum(maxima, shift) - shift) * scale, -1e30)
            weight = tl.where(maxima > -INFINITY, tl.exp(delta), 0.0)
            totals = _field(chunk, lanes[None, :], TOTAL)
            total = tl.sum(totals * weight, 0)
            entropy = tl.sum((_field(chunk, lanes[None, :], ENTROPY) + totals * delta) * weight, 0)
            threshold = -INFINITY
            if top_k is not None or (top_p is not None or min_p is not None):
                row = logits + tl.cast(begin + node, tl.int64) * row_stride
                filtered = sound & (greedy == 0)
                if top_k is not None:
                    k = tl.load(top_k + b)
                    steps = tl.where(filtered & (k > 0) & (k < vocab), 32, 0)
                    threshold = _highest_threshold(
                        row, vocab, chunks, -INFINITY, shift, scale, k.to(tl.float32), True, steps, BLOCK
                    )
                    kept, _entropy = _mass(row, vocab, tl.where(steps > 0, chunks, 0), threshold, shift, scale, BLOCK)
                    total = tl.where(steps > 0, kept, total)
                if top_p is not None:
                    p = tl.load(top_p + b).to(tl.float32)
                    steps = tl.where(filtered & (p < 1), 32, 0)
                    nucleus = _highest_threshold(
                        row, vocab, chunks, threshold, shift, scale, p * total, False, steps, BLOCK
                    )
                    threshold = tl.maximum(threshold, tl.minimum(nucleus, maximum))
                if min_p is not None:
                    least = tl.minimum(tl.load(min_p + b).to(tl.float32), 1.0)
                    lowest = shift + tl.log(tl.where(least > 0, least, 1.0)) / scale
                    threshold = tl.where(least > 0, tl.maximum(threshold, lowest), threshold)
                total, entropy = _mass(row, vocab, tl.where(filtered, chunks, 0), threshold, shift, scale, BLOCK)
            status = tl.where(bad > 0, NOT_FINITE, tl.where(maximum > -INFINITY, 0.0, NO_FINITE_LOGIT))
            one_hot = tl.where(greedy, 2.0, tl.where(sound, 0.0, 1.0))
            record = _record(lanes, maximum, total, entropy, argmax, status, scale, threshold, one_hot)
            tl.store(records + tl.cast(slot, tl.int64) * FIELDS + lanes, record)


@triton.jit
def load_field(records, slot, field: tl.constexpr):
    return tl.load(records + tl.cast(slot, tl.int64) * FIELDS + field)


@triton.jit
def row_status(records, slot):
    return load_field(records, slot, STATUS).to(tl.int32)


@triton.jit
def logits_of(rows, row_stride, slot, vocab, ids):
    """The row at `ids`; -inf past its end."""
    row = rows + tl.cast(slot, tl.int64) * row_stride
    return tl.load(row + ids, mask=ids < vocab, other=-INFINITY).to(tl.float32)


@triton.jit
def weights(x, largest, records, slot):
    """Of a row's logits `x`, relative to that of the logit `largest`."""
    return tl.exp(tl.maximum((x - largest) * load_field(records, slot, SCALE), -1e30))  # 0 * -inf, -inf + inf are NaN


@triton.jit
def probabilities(rows, row_stride, records, slot, vocab, ids):
    """The processed distribution of a row at `ids`."""
    x = logits_of(rows, row_stride, slot, vocab, ids)
    w = weights(x, load_field(records, slot, MAXIMUM), records, slot) / load_field(records, slot, TOTAL)
    p = tl.where(x >= load_field(records, slot, THRESHOLD), w, 0.0)
    one_hot = tl.where(ids == load_field(records, slot, ARGMAX).to(tl.int32), 1.0, 0.0)
    return tl.where(ids < vocab, tl.where(load_field(records, slot, ONE_HOT) > 0, one_hot, p), 0.0)


@triton.jit
def logprob_of(rows, row_stride, records, slot, token):
    """Of a token to which the row gives some mass."""
    lane = tl.arange(0, POINT)
    row = rows + tl.cast(slot, tl.int64) * row_stride
    x = tl.load(row + token + lane, mask=lane == 0, other=0.0).to(tl.float32)
    scaled = (x - load_field(records, slot, MAXIMUM)) * load_field(records, slot, SCALE)
    logprob = scaled - tl.log(tl.zeros_like(x) + load_field(records, slot, TOTAL))
    return tl.sum(tl.where((lane == 0) & (load_field(records, slot, ONE_HOT) == 0), logprob, 0.0), 0)


@triton.jit
def find_in_block(p, lanes, reached, goal):
    """The first of `lanes` (0, 1, ...) at which `reached` and the mass up to it exceed `goal`, which all lanes' does.

    Bisection instead of a scan: a masked sum of the same block never falls as the mask grows.
    """
    low = 0
    high = p.shape[0] - 1
    while low < high:
        middle = (low + high) // 2
        beyond = reached + tl.sum(tl.where(lanes <= middle, p, 0.0), 0) > goal
        high = tl.where(beyond, middle, high)
        low = tl.where(beyond, low, middle + 1)
    return high


def row_records(
    logits: Tensor,
    cu_nodes: Tensor,
    max_nodes: int,
    temperature: Tensor | None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
) -> Tensor:
    """float32 `[B * max_nodes, FIELDS]`: the record of each node's row; that of an absent node is undefined."""
    device = device_of(logits)
    rows, vocab = logits.shape
    if vocab > MAX_VOCAB:
        raise ValueError(f"vocabulary: expected at most {MAX_VOCAB}, which float32 counts exactly, got {vocab}")
    block = min(triton.next_power_of_2(max(vocab, 16)), device.vector_block(live=6))
    chunks = triton.cdiv(vocab, block)
    slots = (cu_nodes.shape[0] - 1) * max_nodes
    chunk_records = torch.empty((slots, chunks, FIELDS.value), dtype=torch.float32, device=logits.device)
    records = torch.empty((slots, FIELDS.value), dtype=torch.float32, device=logits.device)
    shared = (logits, logits.stride(0), vocab, cu_nodes, rows, max_nodes, temperature)
    launch(
        chunk_statistics_kernel,
        min(slots * chunks, device.vector_cores),
        *shared,
        chunk_records,
        slots * chunks,
        chunks,
        BLOCK=block,
    )
    launch(
        row_records_kernel,
        min(slots, device.vector_cores),
        *shared,
        top_k,
        top_p,
        min_p,
        chunk_records,
        records,
        slots,
        chunks,
        CHUNKS=triton.next_power_of_2(chunks),
        BLOCK=block,
    )
    return records
