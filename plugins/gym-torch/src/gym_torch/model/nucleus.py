"""Which tokens can be drawn: the likeliest, by their number (top-k), by the share of the first (min-p) or by their sum (top-p).

The order is vLLM's: `min_p` and `top_k` look at the whole distribution, `top_p` at what they leave.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor


def drawable(logits: Tensor, top_p: float = 1.0, top_k: int = 0, min_p: float = 0.0) -> Tensor:
    """Return which tokens can be drawn by `logits` `[rows, vocabulary]`, bool; at least one of each row."""
    kept = likely(logits, top_k, min_p)
    if top_p < 1.0:
        kept &= nucleus(logits.masked_fill(~kept, -torch.inf).softmax(-1), top_p)
    return kept


def likely(logits: Tensor, top_k: int, min_p: float) -> Tensor:
    """Return which tokens are among the `top_k` likeliest (0 is off), and at least `min_p` times as likely as the likeliest.

    Tokens as likely as the last of the `top_k` are among them (min-p: arXiv:2407.01082).
    """
    least = torch.full_like(logits[..., :1], -torch.inf)
    if min_p > 0:
        least = logits.amax(-1, keepdim=True) + math.log(min_p)
    if 0 < top_k < logits.shape[-1]:
        least = torch.maximum(least, logits.topk(top_k, -1).values[..., -1:])
    return logits >= least


def nucleus(probs: Tensor, top_p: float) -> Tensor:
    """Return which tokens can be drawn, bool `[rows, vocabulary]`: the fewest of the likeliest that together hold `top_p`.

    Of equally likely ones the first (nucleus sampling, arXiv:1904.09751). `probs` are `[rows, vocabulary]`; at least one token is
    left.
    """
    ranked, order = probs.sort(dim=-1, descending=True, stable=True)
    kept = ranked.cumsum(-1, dtype=torch.float64) - ranked < top_p
    return torch.zeros_like(kept).scatter(-1, order, kept)


@torch.no_grad()
def nucleus_tokens(
    hidden: Tensor,
    head: Callable[[Tensor], Tensor],
    targets: Tensor,
    top_p: float = 1.0,
    chunk: int = 256,
    top_k: int = 0,
    min_p: float = 0.0,
) -> Tensor:
    """Return the tokens that `drawable` leaves at every row, and its target, as pairs `[m, 2]` int64 of a
    row and a token.

    Other arguments as those of `gym_torch.model.log_probs.nucleus_log_probs`. What was drawn by other arithmetic may lie just
    outside, hence the target.
    """
    found = [torch.empty(0, 2, dtype=torch.int64, device=hidden.device)]
    for number, (states, labels) in enumerate(zip(hidden.split(chunk), targets.split(chunk), strict=True)):
        kept = drawable(head(states).float(), top_p, top_k, min_p).scatter(1, labels[:, None], True)
        found.append(kept.nonzero() + torch.tensor([number * chunk, 0], device=hidden.device))
    return torch.cat(found)
