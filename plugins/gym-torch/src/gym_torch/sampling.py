"""Choosing the next token. Random numbers are counted, not drawn: they depend on the request, never on the batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_MASK = (1 << 64) - 1


def choose(logits: Tensor, temperature: float, top_p: float, uniforms: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Choose one token for each row.

    Args:
        logits: `[rows, vocabulary]`.
        temperature: 0 takes the likeliest token.
        top_p: sample among the likeliest tokens that together hold this much probability (arXiv:1904.09751).
        uniforms: a number in [0, 1) for each row; not looked at when temperature is 0.

    Returns:
        Tokens `[rows]` int64, and their log-probabilities `[rows]` fp32 under `softmax(logits / temperature)` over the
        whole vocabulary: the distribution before `top_p` cuts it. Temperature 0 reports those of temperature 1.

    """
    log_probs = (logits.float() / (temperature or 1.0)).log_softmax(-1)
    if temperature == 0.0:
        tokens = log_probs.argmax(-1)
    else:
        # fp64, because a running sum over 150,000 fp32 numbers is off by more than many of them.
        probs = log_probs.double().exp()
        order = None
        if top_p < 1.0:
            probs, order = probs.sort(-1, descending=True)
            probs = probs * (probs.cumsum(-1) - probs < top_p)
        sums = probs.cumsum(-1)
        points = torch.tensor(uniforms, dtype=sums.dtype, device=sums.device)[:, None] * sums[:, -1:]
        tokens = torch.searchsorted(sums, points, right=True).clamp(max=sums.shape[-1] - 1)
        tokens = (tokens if order is None else order.gather(-1, tokens)).squeeze(-1)
    return tokens, log_probs.gather(-1, tokens[:, None]).squeeze(-1)


def uniform(seed: int, request: int, position: int) -> float:
    """Return a number in [0, 1) that depends on nothing but the three arguments (SplitMix64 over each in turn)."""
    state = 0
    for part in (seed, request, position):
        state = (state + part + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return (state >> 11) / (1 << 53)
