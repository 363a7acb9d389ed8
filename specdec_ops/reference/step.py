import torch
from torch import Tensor


def advance(
    history: Tensor,
    lengths: Tensor,
    finished: Tensor,
    tokens: Tensor,
    num_accepted: Tensor,
    eos_ids: Tensor,
    max_lens: Tensor,
) -> Tensor:
    eos, capacity = set(eos_ids.tolist()), history.shape[1]
    root = []
    for b in range(history.shape[0]):
        length = min(max(int(lengths[b]), 0), capacity)
        if not finished[b]:
            limit = min(int(max_lens[b]), capacity)
            ended = length >= limit
            for token in tokens[b, : max(0, int(num_accepted[b]) + 1)].tolist():
                if ended or token < 0:
                    break
                history[b, length] = token
                length += 1
                ended = token in eos or length >= limit
            lengths[b] = length
            finished[b] = ended
        root.append(int(history[b, length - 1]) if length else 0)
    return torch.tensor(root, dtype=torch.int64, device=history.device)


def adapt_draft_length(
    rate: Tensor,
    drafted: Tensor,
    accepted: Tensor,
    *,
    decay: float = 0.9,
    min_draft: int = 1,
    max_draft: int = 8,
    draft_cost: float = 0.1,
) -> Tensor:
    def probability() -> Tensor:
        return rate.double().nan_to_num(nan=0).clamp(0, 1)

    # Each draft up to the first rejection was a trial. A step weighs as many trials as it had: the mean of the steps'
    # own shares of successes would be too low, since steps that end early count as much as long ones.
    successes = torch.minimum(accepted.clamp(min=0), drafted).double()
    trials = torch.minimum(successes + 1, drafted)
    moved = probability() + (1 - decay) * (successes - probability() * trials) / drafted
    rate.copy_(torch.where(drafted > 0, moved, rate.double()))
    drafts = torch.arange(max_draft + 1, device=rate.device)
    tokens = (probability()[:, None] ** drafts).cumsum(1)  # column k: 1 + a + ... + a^k
    speed = tokens / (1 + draft_cost * drafts)
    return (min_draft + speed[:, min_draft:].argmax(1)).int()
