"""Which drafts stay, and which token follows them."""

import torch
from torch import Tensor


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
    """Verify one chain of draft tokens a request, straight from logits.

    Request `b` has the nodes `cu_nodes[b]` to `cu_nodes[b + 1]`: its root (the last emitted token), then its drafts.
    Row `i` of the target logits is the distribution of the token after node `i`. `p` is that distribution after the
    filters (see `sample`), `q` the softmax of `draft_logits / draft_temperature`. Requests with temperature 0 are
    verified greedily under every rule.

    Rules, with `x` the draft and `u` the uniform of its node:

    - `rejection`: accept while `u * q(x) < p(x)`, else draw from `max(p - q, 0)`. Lossless. Leviathan, 2211.17192.
    - `block`: the longest prefix that passes a joint test. Lossless, accepts at least as many. Sun, 2403.10444.
    - `strict`: draw the target's own token and go on while it equals the draft. Lossless.
    - `typical`: accept while `p(x) > min(posterior_threshold, posterior_alpha * exp(-entropy(p)))`. Not lossless.
      Cai, 2401.10774.

    Args:
        target_logits: float32, bfloat16 or float16 `[N, V]`; rows may lie any distance apart.
        tokens: int64 `[N]`. A draft outside [0, V) ends its chain; -1 means "no draft here" and sets no status bit.
        cu_nodes: int32 `[B + 1]`, starting with 0.
        uniforms: float32 `[B, max_nodes]` in [0, 1): column `j >= 1` decides node `j`, column 0 draws the last token.
        draft_logits: `[N, V]` in any of the three dtypes; row `i` is what node `i`'s child was drawn from. None: the
            drafts were chosen deterministically, `q` is one-hot.
        draft_temperature: float32 `[B]`, default 1; `q` is one-hot where it is 0.
        temperature, top_k, top_p, min_p: `[B]`, as for `sample`.
        rule: `rejection`, `block`, `strict` or `typical`.
        posterior_threshold, posterior_alpha: parameters of `typical`.
        max_nodes: upper bound of the nodes a request; further nodes are ignored.

    Returns:
        tokens: int64 `[B, max_nodes]`: the accepted drafts, one more token, then -1. A request without nodes emits
            nothing.
        num_accepted: int32 `[B]`, drafts only.
        logprobs: float32 `[B, max_nodes]`: natural log of each emitted token's probability under the processed target
            distribution; 0 where the request is greedy and for padding.
        status: int32 `[B]`, see `check`: 1 a NaN or +inf and 2 no finite entry in a row that was read, 4 a draft ended
            its chain by being neither a token nor -1, 8 cu_nodes does not bound the request's nodes (it emits
            nothing). A target row with bit 1 or 2 ends the chain; the token emitted from it is its largest finite
            logit's (0 if there is none) with logprob 0. A draft row with bit 1 or 2 is taken as one-hot.

    Raises:
        ValueError: an argument has the wrong shape, dtype, device, layout or range, or the rule is unknown; on an NPU,
            V is above 2097152 or `max_nodes` above 8192.
    """
    return torch.ops.specdec.verify_chain.default(
        target_logits,
        tokens,
        cu_nodes,
        uniforms,
        draft_logits=draft_logits,
        draft_temperature=draft_temperature,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        rule=rule,
        posterior_threshold=posterior_threshold,
        posterior_alpha=posterior_alpha,
        max_nodes=max_nodes,
    )


@torch.library.register_fake("specdec::verify_chain")
def _(
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
    batch = cu_nodes.shape[0] - 1
    return (
        tokens.new_empty((batch, max_nodes)),
        tokens.new_empty(batch, dtype=torch.int32),
        tokens.new_empty((batch, max_nodes), dtype=torch.float32),
        tokens.new_empty(batch, dtype=torch.int32),
    )


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
    """Verify one tree of draft tokens a request, straight from logits; the accepted drafts are a path from the root.

    Nodes, `p`, `q`, the filters and greedy requests are as for `verify_chain`. Siblings are tried in the order of their
    indices.

    Rules, with `x` a draft and `u` its node's uniform:

    - `target_only`: one draw from `p` a level, with the first child's uniform, that looks at the children first.
      Lossless whatever drew the children, as long as the tokens of siblings differ; needs no `q`.
    - `recursive`: accept a child if `u * q(x) < p(x)`, else go on to its sibling with `p` the normalised
      `max(p - q, 0)` and `q` without `x`. Lossless for children drawn without replacement. Miao, 2305.09781.
    - `traversal`: judge whole paths, leaves first, and fall back node by node. Lossless for children drawn without
      replacement, accepts at least as many as `recursive`. Weng, 2505.12398.
    - `typical`: the deepest node on a path of tokens with `p(x) > min(posterior_threshold, posterior_alpha *
      exp(-entropy(p)))`, the lowest index on a tie. Not lossless. Cai, 2401.10774.

    Args:
        target_logits: float32, bfloat16 or float16 `[N, V]`; rows may lie any distance apart.
        tokens: int64 `[N]`. A draft outside [0, V) is dead, with all below it; -1 means "no draft here" and sets no
            status bit.
        parents: int32 `[N]`, the index of each node's parent inside its request, -1 for the root. A node whose parent
            does not come before it is dead, with all below it.
        cu_nodes: int32 `[B + 1]`, starting with 0.
        uniforms: float32 `[B, max_nodes]` in [0, 1): column `j >= 1` decides node `j`, column 0 draws the last token.
        draft_logits: `[N, V]` in any of the three dtypes; row `i` is what node `i`'s children were drawn from. None:
            the drafts were chosen deterministically, `q` is one-hot at each.
        draft_temperature: float32 `[B]`, default 1; `q` is one-hot where it is 0.
        temperature, top_k, top_p, min_p: `[B]`, as for `sample`.
        rule: `target_only`, `recursive`, `traversal` or `typical`.
        posterior_threshold, posterior_alpha: parameters of `typical`.
        max_nodes: upper bound of the nodes a request; further nodes are ignored.

    Returns:
        tokens: int64 `[B, max_nodes]`: the accepted drafts, one more token, then -1. A request without nodes emits
            nothing.
        num_accepted: int32 `[B]`, drafts only.
        path: int32 `[B, max_nodes]`: indices inside the request of the root and the accepted nodes, then -1.
        logprobs: float32 `[B, max_nodes]`: natural log of each emitted token's probability under the processed target
            distribution; 0 where the request is greedy and for padding.
        status: int32 `[B]`, see `check`: 1 a NaN or +inf and 2 no finite entry in a row that was read, 4 a draft is
            neither a token nor -1, 8 a parent is wrong, or cu_nodes does not bound the request's nodes (it emits
            nothing). A node whose target row has bit 1 or 2 is taken as a leaf; the token emitted from it is its
            largest finite logit's (0 if there is none) with logprob 0. A draft row with bit 1 or 2 is taken as one-hot.

    Raises:
        ValueError: an argument has the wrong shape, dtype, device, layout or range, or the rule is unknown; on an NPU,
            V is above 2097152 or `max_nodes` above 8192.
    """
    return torch.ops.specdec.verify_tree.default(
        target_logits,
        tokens,
        parents,
        cu_nodes,
        uniforms,
        draft_logits=draft_logits,
        draft_temperature=draft_temperature,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        rule=rule,
        posterior_threshold=posterior_threshold,
        posterior_alpha=posterior_alpha,
        max_nodes=max_nodes,
    )


@torch.library.register_fake("specdec::verify_tree")
def _(
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
    batch = cu_nodes.shape[0] - 1
    return (
        tokens.new_empty((batch, max_nodes)),
        tokens.new_empty(batch, dtype=torch.int32),
        tokens.new_empty((batch, max_nodes), dtype=torch.int32),
        tokens.new_empty((batch, max_nodes), dtype=torch.float32),
        tokens.new_empty(batch, dtype=torch.int32),
    )
