import torch
from torch import Tensor


def ngram_propose(history: Tensor, lengths: Tensor, *, min_n: int, max_n: int, num_draft: int) -> tuple[Tensor, Tensor]:
    drafts = []
    for row, length in zip(history.tolist(), lengths.tolist(), strict=True):
        drafts.append(_continuation(row[: max(length, 0)], min_n, max_n)[:num_draft])
    padded = [found + [-1] * (num_draft - len(found)) for found in drafts]
    return (
        torch.tensor(padded, dtype=torch.int64, device=history.device).reshape(len(drafts), num_draft),
        torch.tensor([len(found) for found in drafts], dtype=torch.int32, device=history.device),
    )


def _continuation(tokens: list[int], min_n: int, max_n: int) -> list[int]:
    for n in range(min(max_n, len(tokens) - 1), min_n - 1, -1):
        for start in range(len(tokens) - n):
            if tokens[start : start + n] == tokens[-n:]:
                return tokens[start + n :]
    return []
