"""Verification of chains and trees: which drafts stay, and which token follows them.

After the records of the target's (and draft's) rows, one program decides a request. A chain is a tree whose nodes have
one child: `rejection` is `recursive` and `block` is `traversal` there. Where drafts are rejected at a node, the node's
distribution becomes p <- norm(max(W p - q, 0)) once a child; it is not stored but computed again, block by block, from
four numbers a child. What is left of q may be too little for the row's own weights: it is held relative to the largest
logit that is left.

In the kernels, pointers to rows, records and tokens are those of the request's root, and nodes count from it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdec_ops.ops import status as bits
from specdec_ops.triton.distribution import (
    ENTROPY,
    FIELDS,
    GREEDY,
    INFINITY,
    MAXIMUM,
    ONE_HOT,
    POINT,
    TOTAL,
    find_in_block,
    load_field,
    logits_of,
    logprob_of,
    nodes_of,
    probabilities,
    row_records,
    row_status,
    weights,
)
from specdec_ops.triton.runtime import device_of, launch

TOKEN_OUT_OF_RANGE = tl.constexpr(bits.TOKEN_OUT_OF_RANGE)
MALFORMED_TREE = tl.constexpr(bits.MALFORMED_TREE)

RECURSIVE = tl.constexpr(0)  # and `rejection`
TRAVERSAL = tl.constexpr(1)  # and `block`
TARGET_ONLY = tl.constexpr(2)
TYPICAL = tl.constexpr(3)
STRICT = tl.constexpr(4)
CHAIN_RULES = {"rejection": RECURSIVE, "block": TRAVERSAL, "strict": STRICT, "typical": TYPICAL}
TREE_RULES = {"target_only": TARGET_ONLY, "recursive": RECURSIVE, "traversal": TRAVERSAL, "typical": TYPICAL}

# What is known of each node: one tensor of `TABLE` parts with a lane for every node.
PARENT = tl.constexpr(0)  # -1 the root's, -2 that of a dead node
TOKEN = tl.constexpr(1)  # of a node that is not dead
WEIGHT = tl.constexpr(2)  # W of the node, or of its parent when the node was rejected; 1 but in `traversal`
LARGEST = tl.constexpr(3)  # logit of the draft's row, the tokens of the node's rejected children left out
REMAINDER = tl.constexpr(4)  # mass of q without these tokens, relative to the weight of LARGEST
REJECTED_LARGEST = tl.constexpr(5)  # the parent's LARGEST when the node was rejected
REJECTED_REMAINDER = tl.constexpr(6)  # and its REMAINDER
REJECTED_MASS = tl.constexpr(7)  # mass of the parent's max(W p - q, 0) then; 0: the node was not rejected
DEPTH = tl.constexpr(7)  # in `typical`, which rejects nothing: of an accepted node, from 1; 0: not accepted
TABLE = tl.constexpr(8)


@triton.jit
def _get(table, part: tl.constexpr, node):
    lanes = tl.arange(0, table.shape[0])
    return tl.sum(tl.where(lanes == part * (table.shape[0] // TABLE) + node, table, 0.0), 0)


@triton.jit
def _set(table, part: tl.constexpr, node, value):
    lanes = tl.arange(0, table.shape[0])
    return tl.where(lanes == part * (table.shape[0] // TABLE) + node, value, table)


@triton.jit
def _parent(table, node):
    return _get(table, PARENT, node).to(tl.int32)


@triton.jit
def _token(table, node):
    return _get(table, TOKEN, node).to(tl.int32)  # exact: see MAX_VOCAB


@triton.jit
def _live_table(tokens, parents, q_records, n, vocab, NODES: tl.constexpr):
    """The table of a request, and its status bits. A node is dead where its parent does not come before it or is dead,
    or where its token is no token; -1 says "no draft here" and is no fault."""
    lanes = tl.arange(0, TABLE * NODES)
    table = tl.where(lanes < NODES, -2.0, 0.0)
    table = tl.where((lanes >= WEIGHT * NODES) & (lanes < LARGEST * NODES), 1.0, table)
    table = _set(table, PARENT, 0, -1.0)
    flags = 0
    if parents is not None:
        flags = tl.where(tl.load(parents) == -1, 0, MALFORMED_TREE)
    for node in range(1, n):
        token = tl.load(tokens + node)
        if parents is None:
            parent = tl.cast(node, tl.int32) - 1
        else:
            parent = tl.load(parents + node)
        in_order = (parent >= 0) & (parent < node)
        has_parent = in_order & (_get(table, PARENT, parent) > -2)
        is_token = (token >= 0) & (token < vocab)
        flags |= tl.where(in_order, 0, MALFORMED_TREE)
        flags |= tl.where(has_parent & (is_token == 0) & (token != -1), TOKEN_OUT_OF_RANGE, 0)
        table = _set(table, PARENT, node, tl.where(has_parent & is_token, parent, -2).to(tl.float32))
        table = _set(table, TOKEN, node, tl.where(is_token, token, 0).to(tl.int32).to(tl.float32))
    if q_records is not None:
        for node in range(0, n):
            table = _set(table, LARGEST, node, load_field(q_records, node, MAXIMUM))
            table = _set(table, REMAINDER, node, load_field(q_records, node, TOTAL))
    return table, flags


@triton.jit
def _drawn_from(x, q_records, node, largest, remainder, ids, token):
    """What a child with this token was drawn from: the node's q without the siblings tried before, as `x` is."""
    one_hot = tl.where(ids == token, 1.0, 0.0)
    if q_records is None:
        return one_hot
    else:
        random = load_field(q_records, node, ONE_HOT) == 0
        q = weights(x, largest, q_records, node) / tl.where(remainder > 0, remainder, 1.0)
        return tl.where(random, q, one_hot)


@triton.jit
def _residual(
    p_rows, p_stride, p_records, q_rows, q_stride, q_records, vocab, table, node, upto, ids, RULE: tl.constexpr
):
    """Of a node at `ids`, after its children before `upto` were rejected: p, and the draft's logits, -inf at their
    tokens."""
    p = probabilities(p_rows, p_stride, p_records, node, vocab, ids)
    if q_rows is None:
        x = tl.zeros_like(p)
    else:
        x = logits_of(q_rows, q_stride, node, vocab, ids)
    for child in range(node + 1, upto):
        if _parent(table, child) == node:
            token = _token(table, child)
            if RULE == TARGET_ONLY:
                p = tl.where(ids == token, 0.0, p)
            else:
                mass = _get(table, REJECTED_MASS, child)
                largest = _get(table, REJECTED_LARGEST, child)
                remainder = _get(table, REJECTED_REMAINDER, child)
                drawn_from = _drawn_from(x, q_records, node, largest, remainder, ids, token)
                excess = tl.maximum(_get(table, WEIGHT, child) * p - drawn_from, 0.0)
                p = tl.where(mass > 0, excess / tl.where(mass > 0, mass, 1.0), p)
                x = tl.where(ids == token, -INFINITY, x)
    return p, x


@triton.jit
def _point(p_rows, p_stride, p_records, q_rows, q_stride, q_records, vocab, table, node, child, RULE: tl.constexpr):
    """p and q of the child's token, where its siblings before it were rejected."""
    token = _token(table, child)
    lane = tl.arange(0, POINT)
    upto = child
    if RULE == TARGET_ONLY:
        upto = node + 1  # p(x) as it was: the rule adds up those of the siblings
    p, x = _residual(
        p_rows, p_stride, p_records, q_rows, q_stride, q_records, vocab, table, node, upto, token + lane, RULE
    )
    largest = _get(table, LARGEST, node)
    q = _drawn_from(x, q_records, node, largest, _get(table, REMAINDER, node), token + lane, token)
    return tl.sum(tl.where(lane == 0, p, 0.0), 0), tl.sum(tl.where(lane == 0, q, 0.0), 0)


@triton.jit
def _masses(
    p_rows, p_stride, p_records, q_rows, q_stride, q_records, vocab, table, node, child, lanes, RULE: tl.constexpr
):
    """Where the child is rejected: the mass of max(W p - q, 0), and what is left of q without the child's token, as
    LARGEST and REMAINDER."""
    token = _token(table, child)
    weight = _get(table, WEIGHT, node)
    largest = _get(table, LARGEST, node)
    remainder = _get(table, REMAINDER, node)
    mass = 0.0
    top = -INFINITY
    left = 0.0
    for first in range(0, vocab, lanes.shape[0]):
        ids = first + lanes
        p, x = _residual(p_rows, p_stride, p_records, q_rows, q_stride, q_records, vocab, table, node, child, ids, RULE)
        drawn_from = _drawn_from(x, q_records, node, largest, remainder, ids, token)
        mass += tl.sum(tl.maximum(weight * p - drawn_from, 0.0), 0)
        if q_records is not None:
            x = tl.where(ids == token, -INFINITY, x)
            higher = tl.maximum(top, tl.max(x, 0))
            left *= tl.max(weights(tl.zeros([POINT], tl.float32) + top, higher, q_records, node), 0)
            left += tl.sum(weights(x, higher, q_records, node), 0)
            top = higher
    return mass, top, left


@triton.jit
def _rejected(table, node, child, mass, largest, remainder):
    """The table after the child was rejected, which left this of the node's q."""
    table = _set(table, REJECTED_MASS, child, mass)
    table = _set(table, WEIGHT, child, _get(table, WEIGHT, node))
    table = _set(table, REJECTED_LARGEST, child, _get(table, LARGEST, node))
    table = _set(table, REJECTED_REMAINDER, child, _get(table, REMAINDER, node))
    return _set(_set(table, LARGEST, node, largest), REMAINDER, node, remainder)


@triton.jit
def _draw(
    p_rows, p_stride, p_records, q_rows, q_stride, q_records, vocab, table, node, upto, goal, lanes, RULE: tl.constexpr
):
    """The first id whose cumulative mass exceeds `goal`; the last id with mass where rounding runs past the end."""
    goal = tl.maximum(goal, 0.0)  # below it an id without mass would do
    reached = 0.0
    drawn = -1
    last = 0
    first = 0
    while (first < vocab) & (drawn < 0):
        ids = first + lanes
        p, _x = _residual(p_rows, p_stride, p_records, q_rows, q_stride, q_records, vocab, table, node, upto, ids, RULE)
        mass = tl.sum(p, 0)
        if reached + mass > goal:
            drawn = first + find_in_block(p, lanes, reached, goal)
        last = tl.maximum(last, tl.max(tl.where(p > 0, ids, 0), 0))
        reached += mass
        first += lanes.shape[0]
    return tl.where(drawn < 0, last, drawn)


@triton.jit
def _is_greedy(p_records):
    return load_field(p_records, 0, ONE_HOT) == GREEDY


@triton.jit
def _walk_down(
    p_rows, p_stride, p_records, q_rows, q_stride, q_records, vocab, table, uniforms, n, lanes, RULE: tl.constexpr
):
    """From the root to the first accepted child, again and again. Children come after their parents, so that one pass
    over the nodes does it. Returns the table, the node reached, and the token that `strict` drew instead (or -1)."""
    at = 0
    instead = -1
    cumulative = 0.0
    level_uniform = tl.load(uniforms)
    first = 1
    for child in range(1, n):
        if (_parent(table, child) == at) & (row_status(p_records, at) == 0) & (instead < 0):
            uniform = tl.load(uniforms + child)
            if RULE == STRICT:
                y = _draw(
                    p_rows,
                    p_stride,
                    p_records,
                    q_rows,
                    q_stride,
                    q_records,
                    vocab,
                    table,
                    at,
                    at + 1,
                    uniform,
                    lanes,
                    RULE,
                )
                accept = y == _token(table, child)
                instead = tl.where(accept, -1, y)
            else:
                p, q = _point(p_rows, p_stride, p_records, q_rows, q_stride, q_records, vocab, table, at, child, RULE)
                if RULE == TARGET_ONLY:
                    level_uniform = tl.where(first > 0, uniform, level_uniform)
                    cumulative += p
                    accept = level_uniform < cumulative
                else:
                    accept = uniform * q < p
                greedy = _is_greedy(p_records)
                accept = tl.where(greedy, p > 0, accept)
                if RULE == RECURSIVE:
                    if (accept | greedy) == 0:
                        mass, largest, remainder = _masses(
                            p_rows,
                            p_stride,
                            p_records,
                            q_rows,
                            q_stride,
                            q_records,
                            vocab,
                            table,
                            at,
                            child,
                            lanes,
                            RULE,
                        )
                        table = _rejected(table, at, child, mass, largest, remainder)
            at = tl.where(accept, child, at)
            first = tl.where(accept, 1, 0)
            cumulative = tl.where(accept, 0.0, cumulative)
    return table, at, instead


@triton.jit
def _deepest_typical(p_rows, p_stride, p_records, vocab, table, n, posterior_threshold, posterior_alpha):
    """The deepest node that likely enough tokens lead to, the first of several; and the status bits of rows used."""
    table = _set(table, DEPTH, 0, 1.0)
    at = 0
    deepest = 1.0
    flags = 0
    for child in range(1, n):
        parent = _parent(table, child)
        depth = _get(table, DEPTH, parent) + 1
        if (parent >= 0) & (depth > 1):
            status = row_status(p_records, parent)
            flags |= status
            lane = tl.arange(0, POINT)
            p = probabilities(p_rows, p_stride, p_records, parent, vocab, _token(table, child) + lane)
            total = tl.zeros_like(p) + load_field(p_records, parent, TOTAL)
            entropy = tl.log(total) - load_field(p_records, parent, ENTROPY) / total
            entropy = tl.where(load_field(p_records, parent, ONE_HOT) > 0, 0.0, entropy)
            likely = p > tl.minimum(posterior_threshold, posterior_alpha * tl.exp(-entropy))
            accept = (tl.sum(tl.where(likely & (lane == 0), 1, 0), 0) > 0) & (status == 0)
            table = _set(table, DEPTH, child, tl.where(accept, depth, 0.0))
            at = tl.where(accept & (depth > deepest), child, at)
            deepest = tl.where(accept, tl.maximum(deepest, depth), deepest)
    return at, flags | row_status(p_records, at)


@triton.jit
def _draft_status(q_records, node):
    """A greedy draft's rows are not looked at."""
    return tl.where(load_field(q_records, node, ONE_HOT) == GREEDY, 0, row_status(q_records, node))


@triton.jit
def _traverse(p_rows, p_stride, p_records, q_rows, q_stride, q_records, vocab, table, uniforms, n, lanes):
    """Leaves first. Returns the table, the accepted node and the status bits of the rows used."""
    NODES: tl.constexpr = table.shape[0] // TABLE
    entries = tl.arange(0, table.shape[0])
    at = 0
    after = 0  # the child of `at` that was rejected last
    flags = 0
    done = tl.where(_is_greedy(p_records), 1, 0)
    # Every node is entered once and left once at most. (With `while` the Ascend compiler crashes.)
    for _step in range(0, 2 * n):
        parent = tl.maximum(_parent(table, at), 0)
        weight = _get(table, WEIGHT, at)
        parent_weight = _get(table, WEIGHT, parent)
        looked_at = (done == 0) & (weight > 0)
        status = row_status(p_records, at)
        later = (entries < n) & (entries > after) & (table == tl.cast(at, tl.float32))
        child = tl.min(tl.where(later, entries, NODES), 0)
        flags |= tl.where(looked_at & (child < NODES), status, 0)  # a leaf's row counts once the leaf is accepted
        descend = (child < NODES) & (status == 0) & looked_at
        if q_records is not None:
            flags |= tl.where(descend, _draft_status(q_records, at), 0)
        accept = (descend == 0) & ((at == 0) | (tl.load(uniforms + at) < weight))
        done = tl.where(accept, 1, done)
        reject = (descend == 0) & (done == 0)

        # The branches yield numbers, not the table, which a branch that yields it would lay out with a stride.
        entered = 0.0
        mass = 0.0
        largest = 0.0
        remainder = 0.0
        if descend:
            p, q = _point(p_rows, p_stride, p_records, q_rows, q_stride, q_records, vocab, table, at, child, TRAVERSAL)
            ratio = tl.where(q > 0, p / tl.where(q > 0, q, 1.0), 1e30)
            entered = tl.where(p > 0, tl.minimum(weight * ratio, 1.0), 0.0)
        if reject:
            mass, largest, remainder = _masses(
                p_rows, p_stride, p_records, q_rows, q_stride, q_records, vocab, table, parent, at, lanes, TRAVERSAL
            )
        fallen = tl.where(mass > 0, mass / tl.where(mass > 0, mass + (1 - parent_weight), 1.0), 0.0)
        nowhere = entries.shape[0]
        above = tl.where(reject, parent, nowhere)
        table = _rejected(table, above, tl.where(reject, at, nowhere), mass, largest, remainder)
        table = _set(table, WEIGHT, above, fallen)
        table = _set(table, WEIGHT, tl.where(descend, child, nowhere), entered)
        after = tl.where(descend, child, tl.where(reject, at, after))
        at = tl.where(descend, child, tl.where(reject, parent, at))
    return table, at, flags


@triton.jit
def _walk(
    p_rows,
    p_stride,
    p_records,
    q_rows,
    q_stride,
    q_records,
    vocab,
    table,
    uniforms,
    n,
    posterior_threshold,
    posterior_alpha,
    lanes,
    RULE: tl.constexpr,
):
    """To the last accepted node. Returns the table, the node, the token that `strict` drew instead of a draft (or -1),
    and the status bits of the rows used, those on the path left out."""
    greedy = _is_greedy(p_records)
    at = 0
    flags = 0
    walks = n
    if RULE == TYPICAL or RULE == TRAVERSAL:
        walks = tl.where(greedy, n, 1)  # greedy requests walk down whatever the rule
    if RULE == TYPICAL:
        n_typical = tl.where(greedy, 1, n)
        at, flags = _deepest_typical(
            p_rows, p_stride, p_records, vocab, table, n_typical, posterior_threshold, posterior_alpha
        )
    if RULE == TRAVERSAL:
        table, at, flags = _traverse(
            p_rows, p_stride, p_records, q_rows, q_stride, q_records, vocab, table, uniforms, n, lanes
        )
    table, reached, instead = _walk_down(
        p_rows, p_stride, p_records, q_rows, q_stride, q_records, vocab, table, uniforms, walks, lanes, RULE
    )
    return table, tl.maximum(at, reached), instead, flags


@triton.jit
def _bonus(
    p_rows, p_stride, p_records, q_rows, q_stride, q_records, vocab, table, uniforms, n, at, lanes, RULE: tl.constexpr
):
    """The token that follows the accepted path: drawn from what the rejected children of its last node leave of p."""
    upto = n
    if RULE == STRICT or RULE == TYPICAL:
        upto = at + 1
    upto = tl.where(row_status(p_records, at) > 0, at + 1, upto)
    goal = tl.load(uniforms)
    if RULE == TARGET_ONLY:
        mass = 0.0
        for first in range(0, vocab, lanes.shape[0]):
            ids = first + lanes
            p, _x = _residual(p_rows, p_stride, p_records, None, 0, None, vocab, table, at, upto, ids, RULE)
            mass += tl.sum(p, 0)
        upto = tl.where(mass > 0, upto, at + 1)
        goal = goal * tl.where(mass > 0, mass, 1.0)
    return _draw(p_rows, p_stride, p_records, q_rows, q_stride, q_records, vocab, table, at, upto, goal, lanes, RULE)


@triton.jit
def _emit(
    p_rows,
    p_stride,
    p_records,
    q_records,
    table,
    n,
    at,
    token,
    out_tokens,
    num_accepted,
    path,
    logprobs,
    RULE: tl.constexpr,
):
    """Stores the accepted path from its end, which `token` follows. Returns the status bits of the rows on it."""
    flags = 0
    depth = 0
    node = at
    while node > 0:
        node = _parent(table, node)
        depth += 1
    tl.store(num_accepted, depth)
    node = at
    for i in range(0, depth + 1):
        out = depth - i
        tl.store(path + out, node)
        tl.store(out_tokens + out, token.to(tl.int64))
        tl.store(logprobs + out, logprob_of(p_rows, p_stride, p_records, node, token))
        status = row_status(p_records, node)
        flags |= status
        if RULE == RECURSIVE and q_records is not None:
            # q is asked for only where there is a draft to test.
            children = (tl.arange(0, table.shape[0]) < n) & (table == tl.cast(node, tl.float32))
            asked = (_is_greedy(p_records) == 0) & (tl.sum(tl.where(children, 1, 0), 0) > 0) & (status == 0)
            flags |= tl.where(asked, _draft_status(q_records, node), 0)
        token = _token(table, node)
        node = _parent(table, node)
    return flags


@triton.jit
def verify_kernel(
    target,
    p_stride,
    target_records,
    draft,
    q_stride,
    draft_records,
    vocab,
    tokens,
    parents,
    cu_nodes,
    num_rows,
    max_nodes,
    uniforms,
    posterior_threshold,
    posterior_alpha,
    out_tokens,
    num_accepted,
    path,
    logprobs,
    status,
    batch,
    RULE: tl.constexpr,
    NODES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    lanes = tl.arange(0, BLOCK)
    for b in range(tl.program_id(0), batch, tl.num_programs(0)):
        begin, n, valid = nodes_of(cu_nodes, b, num_rows, max_nodes)
        flags = tl.where(valid, 0, MALFORMED_TREE)
        if n > 0:
            root = tl.cast(b, tl.int64) * max_nodes
            p_rows = target + tl.cast(begin, tl.int64) * p_stride
            p_records = target_records + root * FIELDS
            q_rows = None
            q_records = None
            if draft is not None:
                q_rows = draft + tl.cast(begin, tl.int64) * q_stride
                q_records = draft_records + root * FIELDS
            request_parents = None
            if parents is not None:
                request_parents = parents + begin

            table, flags = _live_table(tokens + begin, request_parents, q_records, n, vocab, NODES)
            table, at, token, used = _walk(
                p_rows,
                p_stride,
                p_records,
                q_rows,
                q_stride,
                q_records,
                vocab,
                table,
                uniforms + root,
                n,
                posterior_threshold,
                posterior_alpha,
                lanes,
                RULE,
            )
            if token < 0:
                token = _bonus(
                    p_rows,
                    p_stride,
                    p_records,
                    q_rows,
                    q_stride,
                    q_records,
                    vocab,
                    table,
                    uniforms + root,
                    n,
                    at,
                    lanes,
                    RULE,
                )
            flags |= used | _emit(
                p_rows,
                p_stride,
                p_records,
                q_records,
                table,
                n,
                at,
                token,
                out_tokens + root,
                num_accepted + b,
                path + root,
                logprobs + root,
                RULE,
            )
        tl.store(status + b, flags)


def _verify(
    rule: tl.constexpr,
    target_logits: Tensor,
    tokens: Tensor,
    parents: Tensor | None,
    cu_nodes: Tensor,
    uniforms: Tensor,
    draft_logits: Tensor | None,
    draft_temperature: Tensor | None,
    filters: tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None],
    posterior_threshold: float,
    posterior_alpha: float,
    max_nodes: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    device, batch, (rows, vocab) = target_logits.device, cu_nodes.shape[0] - 1, target_logits.shape
    out_tokens = torch.full((batch, max_nodes), -1, dtype=torch.int64, device=device)
    num_accepted = torch.zeros(batch, dtype=torch.int32, device=device)
    path = torch.full((batch, max_nodes), -1, dtype=torch.int32, device=device)
    logprobs = torch.zeros((batch, max_nodes), dtype=torch.float32, device=device)
    status = torch.zeros(batch, dtype=torch.int32, device=device)
    if rule not in (RECURSIVE, TRAVERSAL):
        draft_logits = None
    target = row_records(target_logits, cu_nodes, max_nodes, *filters)
    draft = None if draft_logits is None else row_records(draft_logits, cu_nodes, max_nodes, draft_temperature)
    block = min(triton.next_power_of_2(max(vocab, 16)), device_of(target_logits).vector_block(live=10))
    launch(
        verify_kernel,
        min(batch, device_of(target_logits).vector_cores),
        target_logits,
        target_logits.stride(0),
        target,
        draft_logits,
        0 if draft_logits is None else draft_logits.stride(0),
        draft,
        vocab,
        tokens,
        parents,
        cu_nodes,
        rows,
        max_nodes,
        uniforms,
        posterior_threshold,
        posterior_alpha,
        out_tokens,
        num_accepted,
        path,
        logprobs,
        status,
        batch,
        RULE=rule.value,
        NODES=triton.next_power_of_2(max(max_nodes, 8)),
        BLOCK=block,
    )
    return out_tokens, num_accepted, path, logprobs, status


def verify_chain(
    target_logits: Tensor,
    tokens: Tensor,
    cu_nodes: Tensor,
    uniforms: Tensor,
    *,
    draft_logits: Tensor | None = None,
    draft_temperature: Tensor | None = None,
    temperature: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    rule: str = "rejection",
    posterior_threshold: float = 0.09,
    posterior_alpha: float = 0.3,
    max_nodes: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    out_tokens, num_accepted, _, logprobs, status = _verify(
        CHAIN_RULES[rule],
        target_logits,
        tokens,
        None,
        cu_nodes,
        uniforms,
        draft_logits,
        draft_temperature,
        (temperature, top_k, top_p, min_p),
        posterior_threshold,
        posterior_alpha,
        max_nodes,
    )
    return out_tokens, num_accepted, logprobs, status


def verify_tree(
    target_logits: Tensor,
    tokens: Tensor,
    parents: Tensor,
    cu_nodes: Tensor,
    uniforms: Tensor,
    *,
    draft_logits: Tensor | None = None,
    draft_temperature: Tensor | None = None,
    temperature: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    rule: str = "target_only",
    posterior_threshold: float = 0.09,
    posterior_alpha: float = 0.3,
    max_nodes: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _verify(
        TREE_RULES[rule],
        target_logits,
        tokens,
        parents,
        cu_nodes,
        uniforms,
        draft_logits,
        draft_temperature,
        (temperature, top_k, top_p, min_p),
        posterior_threshold,
        posterior_alpha,
        max_nodes,
    )
