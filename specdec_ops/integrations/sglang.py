"""SGLang's tree and verification functions: same arguments, same outputs, written in place as theirs.

A tree is given as linked lists, `[B, D]` each: node `i` has the first child `retrive_next_token[b, i]`, that child's
siblings follow along `retrive_next_sibling`, and -1 ends a list. `retrive_index[b, i]` is the node's place in the flat
outputs. Node 0 is the root, the last token emitted. (The spelling is SGLang's.)

SGLang hands over probabilities where the operators take logits. Their logarithm serves: it is the logits up to a
constant a row, and a probability of 0 becomes -inf. Where SGLang accepts at `coin <= p`, the operators accept at
`coin < p`, so that a token of probability 0 never passes.

Nothing here reads a device tensor on the host.
"""

from collections.abc import Sequence
from enum import IntEnum

import torch
from torch import Tensor

from specdec_ops.integrations import cu_nodes_of_equal
from specdec_ops.ops import kv_rollback, verify_chain, verify_tree
from specdec_ops.ops import tree_mask as ancestors

MIN_THRESHOLD_ACC = 1e-9  # SGLang's own floor
FORCED_PROBABILITY = 1e-30  # stands for 0 where a threshold of 0 lets an impossible token pass


class TreeMaskMode(IntEnum):
    FULL_MASK = 0  # rows of context and nodes, requests one after another
    QLEN_ONLY = 1  # rows of nodes
    QLEN_ONLY_BITPACKING = 2  # one 8, 16 or 32 bit word a row


def _link(parents: Tensor, index: Tensor, next_token: Tensor, next_sibling: Tensor) -> None:
    """Write the linked lists of trees whose nodes know their parents, `[B, D]`; children in ascending order."""
    batch, nodes = parents.shape
    node = torch.arange(nodes, device=parents.device)
    later = node > node[:, None]
    is_child = (parents[:, None, :] == node[:, None]) & later
    is_sibling = (parents[:, None, :] == parents[:, :, None]) & (parents[:, :, None] >= 0) & later

    def first(candidates: Tensor) -> Tensor:
        found = torch.where(candidates, node, nodes).amin(-1)
        return torch.where(found < nodes, found, -1)

    index.copy_(torch.arange(batch * nodes, device=parents.device).view(batch, nodes))
    next_token.copy_(first(is_child))
    next_sibling.copy_(first(is_sibling))


def build_tree_kernel_efficient(
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Masks, positions and linked lists of the chosen draft trees.

    Args:
        parent_list: int64 `[B, topk * (depth - 1) + 1]`, for each group of `topk` candidates the candidate they
            continue; `[B, 0]` where depth is 1.
        selected_index: int64 `[B, D - 1]`, the candidates that became nodes 1, 2, ..., ascending.
        verified_seq_len: int64 `[B]`, tokens before the root.
        tree_mask: written, bool or (packed) uint8, uint16, uint32; see `TreeMaskMode`. In FULL_MASK the columns of the
            context are left as they are.
        positions: written, int64 `[B * D]`.
        retrive_index, retrive_next_token, retrive_next_sibling: written, int64 `[B, D]`.
        topk, depth: branching and depth of the draft tree.
        draft_token_num: `D`; at most 32 where the mask is packed.
        tree_mask_mode: a `TreeMaskMode`.
    """
    batch, nodes = selected_index.shape[0], draft_token_num
    device = selected_index.device
    parents = torch.zeros((batch, nodes), dtype=torch.int64, device=device)
    parents[:, 0] = -1
    if parent_list.shape[1] > 0:
        group = selected_index // topk
        continued = parent_list.gather(1, group.clamp(0, parent_list.shape[1] - 1))
        match = selected_index[:, None, :] == continued[:, :, None]
        parent = torch.where(match.any(-1), match.long().argmax(-1) + 1, -1)  # -1: its parent was not selected
        parents[:, 1:] = torch.where(group == 0, 0, parent)
    mask, node_depth = ancestors(parents.flatten().int(), cu_nodes_of_equal(batch, nodes, device), nodes)

    positions.copy_((node_depth.view(batch, nodes) + verified_seq_len[:, None]).flatten())
    _link(parents, retrive_index, retrive_next_token, retrive_next_sibling)
    if tree_mask_mode == TreeMaskMode.QLEN_ONLY_BITPACKING:
        if nodes > 32:
            raise ValueError(f"draft_token_num: expected at most 32 for a packed mask, got {nodes}")
        word_bytes = 1 if nodes <= 8 else 2 if nodes <= 16 else 4
        words = mask.view(torch.uint8).view(batch * nodes, 8)[:, :word_bytes]  # little-endian
        tree_mask.view(torch.uint8).flatten()[: words.numel()].copy_(words.flatten())
        return
    node = torch.arange(nodes, device=device)
    bits = ((mask[:, node // 64] >> (node % 64)) & 1).bool()
    if tree_mask_mode == TreeMaskMode.QLEN_ONLY:
        tree_mask.view(-1)[: bits.numel()].copy_(bits.flatten())
        return
    row_length = (verified_seq_len + nodes)[:, None]
    request_start = nodes * (row_length.cumsum(0) - row_length)
    node_columns = request_start + row_length * (node + 1) - nodes  # where node 0's column lies, a row each
    tree_mask.view(-1).scatter_(0, (node_columns[:, :, None] + node).flatten(), bits.flatten())


def reconstruct_indices_from_tree_mask(
    tree_mask: Tensor,
    verified_seq_len: Tensor,
    positions: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Positions and linked lists of the trees whose ancestor masks are given: bool `[B * D * D]`, rows of nodes."""
    node = torch.arange(draft_token_num, device=tree_mask.device)
    is_ancestor = tree_mask.view(batch_size, draft_token_num, draft_token_num) & (node < node[:, None])
    positions.copy_((is_ancestor.sum(-1) + verified_seq_len[:, None]).flatten())
    parents = torch.where(is_ancestor, node, -1).amax(-1)
    _link(parents, retrive_index, retrive_next_token, retrive_next_sibling)


def _order(next_token: Tensor, next_sibling: Tensor) -> tuple[Tensor, Tensor]:
    """An order of the nodes that `verify_tree` can read, and the parents in it, `[B, D]` both.

    Parents come before children and siblings in the order of their list. Nodes in no list have the parent -1.
    """
    batch, nodes = next_token.shape
    node = torch.arange(nodes, device=next_token.device).expand(batch, nodes)
    nobody = torch.full((batch, nodes + 1), -1, device=next_token.device)

    def source(links: Tensor) -> Tensor:  # of each node, the one that links to it
        in_range = (links > 0) & (links < nodes)
        return nobody.scatter(1, torch.where(in_range, links.long(), nodes), node)[:, :nodes]

    parent_of_first, previous = source(next_token), source(next_sibling)
    first_sibling = torch.where(previous >= 0, previous, node)
    step = torch.where(previous >= 0, previous, parent_of_first)
    step = torch.cat([torch.where(step >= 0, step, nodes), nobody[:, :1] + nodes + 1], 1)
    links_above = (step < nodes).long()
    for _ in range((nodes - 1).bit_length()):  # each pass doubles how far the pointers reach
        first_sibling = first_sibling.gather(1, first_sibling)
        links_above = links_above + links_above.gather(1, step)
        step = step.gather(1, step)
    parents = parent_of_first.gather(1, first_sibling)
    order = links_above[:, :nodes].argsort(dim=1, stable=True)
    place = torch.empty_like(order).scatter_(1, order, node)
    parents = parents.gather(1, order)
    return order, torch.where(parents >= 0, place.gather(1, parents.clamp(min=0)), -1)


def _emit(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    flat: Tensor,
    tokens: Tensor,
    num_accepted: Tensor,
) -> None:
    """Write what SGLang reads, given flat indices and emitted tokens along the accepted path, `[B, D]`."""
    width = min(accept_index.shape[1], flat.shape[1])
    flat, tokens = flat[:, :width], tokens[:, :width]
    on_path = torch.arange(width, device=flat.device) <= num_accepted[:, None]
    accept_token_num.copy_(num_accepted)
    accepted = accept_index[:, :width]
    accepted.copy_(torch.where(on_path, flat, accepted))
    # Past the end of a path, the root's entry is written again: no mask to be read on the host.
    index, token = torch.where(on_path, flat, flat[:, :1]), torch.where(on_path, tokens, tokens[:, :1])
    predicts.scatter_(0, index.flatten().long(), token.flatten().to(predicts.dtype))


def _verify_tree(
    accept_index: Tensor,
    candidates: Tensor,
    order: Tensor,
    parents: Tensor,
    logits: Tensor,
    uniforms: Tensor,
    temperature: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Emitted tokens, number of accepted drafts and the path in SGLang's node numbers; rows of logits in our order."""
    batch, nodes = order.shape
    parents, cu_nodes = parents.flatten().int(), cu_nodes_of_equal(batch, nodes, order.device)
    tokens = candidates.gather(1, order).flatten().long()
    if accept_index.shape[1] < nodes:  # a path may be no longer than SGLang has room for
        _, depth = ancestors(parents, cu_nodes, nodes)
        tokens = torch.where(depth < accept_index.shape[1], tokens, -1)
    emitted, num_accepted, path, _, _ = verify_tree(
        logits, tokens, parents, cu_nodes, uniforms, temperature=temperature, max_nodes=nodes
    )
    return emitted, num_accepted, order.gather(1, path.clamp(min=0).long())


def verify_tree_greedy(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Follow the target's own choices down the tree.

    Args:
        predicts: written at the accepted nodes, int32 `[B * D]`: the token after the node.
        accept_index: written as far as the path reaches, int32 `[B, W]`: flat indices of root and accepted nodes.
        accept_token_num: written, int32 `[B]`, accepted drafts.
        candidates: `[B, D]` tokens of the nodes.
        retrive_index, retrive_next_token, retrive_next_sibling: `[B, D]`, see above.
        target_predict: `[B, D]`, the target's choice after each node.
    """
    batch, nodes = candidates.shape
    order, parents = _order(retrive_next_token, retrive_next_sibling)
    # The target's ids suffice: as "logits", one-hot rows over the request's candidates and one class for all else.
    node = torch.arange(nodes + 1, device=candidates.device)

    def class_of(tokens: Tensor) -> Tensor:  # the first node with this token
        same = tokens[:, :, None] == candidates[:, None, :]
        return torch.where(same, node[:nodes], nodes).amin(-1)

    logits = (class_of(target_predict).gather(1, order).view(-1, 1) == node).float()
    zeros = torch.zeros((batch, nodes), device=candidates.device)
    _, num_accepted, path = _verify_tree(
        accept_index, class_of(candidates), order, parents, logits, uniforms=zeros, temperature=zeros[:, 0].contiguous()
    )
    flat, tokens = retrive_index.gather(1, path), target_predict.gather(1, path)
    _emit(predicts, accept_index, accept_token_num, flat, tokens, num_accepted)


def tree_speculative_sampling_target_only(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    uniform_samples: Tensor,
    uniform_samples_for_final_sampling: Tensor,
    target_probs: Tensor,
    draft_probs: Tensor | None = None,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
) -> None:
    """Walk down the tree with one draw a level from the target's distribution.

    Among the children of the node reached, the first is taken whose probability, added to its elder siblings', exceeds
    `coin * threshold_acc`, or whose own probability is at least `threshold_single`. Thresholds below 1 accept more than
    the target's distribution would.

    Args:
        predicts, accept_index, accept_token_num: written, as by `verify_tree_greedy`.
        candidates, retrive_index, retrive_next_token, retrive_next_sibling: `[B, D]`.
        uniform_samples: float32 `[B, D]`, the coin of each node's children.
        uniform_samples_for_final_sampling: float32 `[B]`.
        target_probs: float32 `[B, D, V]`.
        draft_probs: not used, and not written; SGLang keeps the rejected siblings' probabilities there.
        threshold_single, threshold_acc: in [0, 1].
        deterministic: always.
    """
    order, parents = _order(retrive_next_token, retrive_next_sibling)
    request = torch.arange(order.shape[0], device=order.device)[:, None]
    probs = target_probs[request, order]  # a copy
    parent = parents.clamp(min=0)
    uniforms = uniform_samples.gather(1, order).gather(1, parent) * max(threshold_acc, MIN_THRESHOLD_ACC)
    if threshold_single < 1:
        # The first child over the threshold passes at the latest: bound the coin by the middle of its interval.
        token = candidates.gather(1, order).long()
        is_draft = (parents >= 0) & (token >= 0) & (token < probs.shape[2])
        token = token.clamp(0, probs.shape[2] - 1)
        p = probs[request, parent, token]
        is_forced = is_draft & (p >= threshold_single)
        p = torch.where(is_forced, p.clamp(min=FORCED_PROBABILITY), p)
        probs[request, parent, token] = p
        is_sibling = (parents[:, :, None] == parents[:, None, :]) & is_draft[:, None, :]
        elder = (is_sibling.tril(-1) * p[:, None, :]).sum(-1)
        middle = torch.where(is_forced, elder + p / 2, torch.inf)
        uniforms = uniforms.minimum(torch.where(is_sibling, middle[:, None, :], torch.inf).amin(-1))
    uniforms[:, 0] = uniform_samples_for_final_sampling
    emitted, num_accepted, path = _verify_tree(
        accept_index, candidates, order, parents, probs.log_().flatten(0, 1), uniforms
    )
    _emit(predicts, accept_index, accept_token_num, retrive_index.gather(1, path), emitted, num_accepted)


def chain_speculative_sampling(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor | None,
    retrive_next_sibling: Tensor | None,
    uniform_samples: Tensor,
    uniform_samples_for_final_sampling: Tensor,
    target_probs: Tensor,
    draft_probs: Tensor,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
    *,
    block_verification: bool = False,
) -> None:
    """Rejection sampling along a chain; SGLang's `chain_speculative_sampling_triton`.

    Args:
        predicts, accept_index, accept_token_num: written, as by `verify_tree_greedy`.
        candidates, retrive_index: `[B, D]`.
        uniform_samples: float32 `[B, D]`; column `i - 1` decides node `i`.
        uniform_samples_for_final_sampling: float32 `[B]`.
        target_probs: float32 `[B, D, V]`.
        draft_probs: float32 `[B, D - 1 or more, V]`, row `i` the distribution that node `i + 1` was drawn from.
        retrive_next_token, retrive_next_sibling, threshold_single, threshold_acc, deterministic: not used, as theirs.
        block_verification: judge the drafts together (rule `block`) instead of one by one.
    """
    batch, nodes = candidates.shape
    # Nothing is drafted after the last node: any row serves.
    draft_logits = torch.nn.functional.pad(draft_probs[:, : nodes - 1], (0, 0, 0, 1), value=1.0).log_()
    uniforms = torch.cat([uniform_samples_for_final_sampling[:, None], uniform_samples[:, : nodes - 1]], 1)
    emitted, num_accepted, _, _ = verify_chain(
        target_probs.log().flatten(0, 1),
        candidates.flatten().long(),
        cu_nodes_of_equal(batch, nodes, candidates.device),
        uniforms,
        draft_logits=draft_logits.flatten(0, 1),
        rule="block" if block_verification else "rejection",
        max_nodes=nodes,
    )
    _emit(predicts, accept_index, accept_token_num, retrive_index, emitted, num_accepted)


def _flat_positions(
    req_pool_indices: Tensor, start_offset: Tensor, end_offset: Tensor, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Pool row and column of each entry of a flat list, request after request, and the entry's own place in the list.

    Entries past the end repeat the last one.
    """
    end = (end_offset - start_offset).clamp(min=0).cumsum(0)
    entry = torch.arange(count, device=end.device).minimum(end[-1] - 1).clamp(min=0)
    request = torch.searchsorted(end, entry, right=True).clamp(max=end.shape[0] - 1)
    column = end_offset[request] - (end[request] - entry)
    return req_pool_indices[request].long(), column.long(), entry


def assign_req_to_token_pool(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    batch_size: int,
) -> None:
    """Write cache locations into the table: request `b` gets the next `end - start` of them in columns `start:end`.

    SGLang's `assign_req_to_token_pool_func`.

    Args:
        req_pool_indices: `[B]`, rows of the table.
        req_to_token: int32 `[rows, columns]`, written.
        start_offset, end_offset: `[B]`.
        out_cache_loc: the locations, request after request; more than needed are left over.
        batch_size: `B`.
    """
    if out_cache_loc.numel() == 0 or batch_size == 0:
        return
    row, column, entry = _flat_positions(req_pool_indices, start_offset, end_offset, out_cache_loc.numel())
    column = column.clamp(0, req_to_token.shape[1] - 1)
    any_entry = (end_offset > start_offset).any()
    value = torch.where(any_entry, out_cache_loc[entry].to(req_to_token.dtype), req_to_token[row, column])
    req_to_token.index_put_((row, column), value)


def assign_extend_cache_locs(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    batch_size: int,
    draft_token_num: int,
    device: torch.device | str,
) -> Tensor:
    """Read cache locations from the table, columns `start:end` of each request, one request after another.

    SGLang's `assign_extend_cache_locs_func`. Returns `[B * draft_token_num]`, int32 on an NPU and int64 elsewhere, as
    theirs; what lies past the last request's is undefined.
    """
    row, column, _ = _flat_positions(req_pool_indices, start_offset, end_offset, batch_size * draft_token_num)
    locations = req_to_token[row, column.clamp(0, req_to_token.shape[1] - 1)]
    return locations.to(torch.int32 if torch.device(device).type == "npu" else torch.int64)


def move_kv_cache(k_buffer: Sequence[Tensor], v_buffer: Sequence[Tensor], tgt_loc: Tensor, src_loc: Tensor) -> None:
    """Move cache rows of all layers in one call, pair after pair: `cache[tgt_loc[i]] = cache[src_loc[i]]`.

    SGLang's `move_kv_cache_native`. A row must not be a target before it is a source, which holds where accepted rows
    are moved forward.

    Args:
        k_buffer, v_buffer: tensors `[rows, ...]` of the same number of rows, written.
        tgt_loc, src_loc: integers `[M]`.
    """
    count = tgt_loc.numel()
    if count == 0:
        return
    # One request with pages of one token: its slots 0..M-1 are the targets and M..2M-1 the sources.
    table = torch.cat([tgt_loc.flatten(), src_loc.flatten()]).int()[None]
    path = torch.arange(count, 2 * count, dtype=torch.int32, device=table.device)[None]
    num_accepted = torch.full((1,), count - 1, dtype=torch.int32, device=table.device)
    caches = [cache.unsqueeze(1) for cache in (*k_buffer, *v_buffer)]
    kv_rollback(caches, table, torch.zeros_like(num_accepted), num_accepted, path)
