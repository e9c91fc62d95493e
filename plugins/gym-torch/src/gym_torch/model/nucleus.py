"""Nucleus sampling (top-p, arXiv:1904.09751): which tokens can be drawn."""

from __future__ import annotations

import torch
from torch import Tensor


def nucleus(probs: Tensor, top_p: float) -> Tensor:
    """Return which tokens can be drawn, bool `[rows, vocabulary]`: the fewest of the likeliest that together hold `top_p`.

    Of equally likely ones the first. `probs` are `[rows, vocabulary]`; at least one token is left.
    """
    ranked, order = probs.sort(dim=-1, descending=True, stable=True)
    kept = ranked.cumsum(-1, dtype=torch.float64) - ranked < top_p
    return torch.zeros_like(kept).scatter(-1, order, kept)
