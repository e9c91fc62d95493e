"""Choosing the next token. Random numbers are a function of seed, request and position, so they do not depend on the batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from gym_torch.model.nucleus import likely, nucleus

COLDEST = 1e-5  #: temperature below which the likeliest token is taken, as vLLM does; logits divided by less overflow
BLOCK = 256  #: probabilities added up in fp32 before the running sum goes on in fp64
_MASK = (1 << 64) - 1


#: From the logits of a row to those that it is drawn from, `[vocabulary]` fp32, a new tensor.
Adjust = Callable[[Tensor], Tensor]


class SamplingOptions(NamedTuple):
    """How a token is drawn."""

    temperature: float = 0.0  #: 0, and whatever is below `COLDEST`, is greedy
    top_p: float = 1.0
    top_k: int = 0  #: 0 is off
    seed: int = 0
    min_p: float = 0.0  #: 0 is off


class Scores(NamedTuple):
    """How likely a token was at temperature 1, before anything was adjusted, and which tokens were likeliest."""

    log_prob: float
    top: list[tuple[int, float]]  #: the likeliest first


GREEDY = SamplingOptions()


def choose_rows(
    logits: Tensor,
    options: Sequence[SamplingOptions],
    places: Sequence[tuple[int, int]],
    adjusts: Mapping[int, Adjust] | None = None,
) -> tuple[Tensor, Tensor]:
    """Choose one token for each row, each with its own options.

    Args:
        logits: `[rows, vocabulary]`.
        options: for each row.
        places: for each row the stream of its random numbers, and the position.
        adjusts: by row, what changes its logits first.

    Returns:
        As `choose` does. Rows of the same options are computed together, and no row depends on the others.

    """
    if adjusts:
        logits = logits.float().clone()
        for row, adjust in adjusts.items():
            logits[row] = adjust(logits[row])
    alike: dict[tuple[float, float, int, float], list[int]] = {}
    for row, each in enumerate(options):
        alike.setdefault((each.temperature, each.top_p, each.top_k, each.min_p), []).append(row)
    draws = [
        uniform(each.seed, *place) if each.temperature else 0.0 for each, place in zip(options, places, strict=True)
    ]
    if len(alike) == 1:
        ((temperature, top_p, top_k, min_p),) = alike
        return choose(logits, temperature, top_p, draws, top_k, min_p)
    tokens = torch.empty(len(options), dtype=torch.long, device=logits.device)
    log_probs = torch.empty(len(options), device=logits.device)
    for (temperature, top_p, top_k, min_p), rows in alike.items():
        found = choose(logits[rows], temperature, top_p, [draws[row] for row in rows], top_k, min_p)
        tokens[rows], log_probs[rows] = found
    return tokens, log_probs


def scores_of(logits: Tensor, token: int, count: int) -> Scores:
    """Return how likely a token is by the logits `[vocabulary]`, and the `count` likeliest tokens."""
    log_probs = logits.float().log_softmax(-1)
    values, tokens = log_probs.topk(min(count, len(log_probs)))
    return Scores(float(log_probs[token]), list(zip(tokens.tolist(), values.tolist(), strict=True)))


def choose(
    logits: Tensor,
    temperature: float,
    top_p: float,
    uniforms: Sequence[float],
    top_k: int = 0,
    min_p: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Choose one token for each row.

    Args:
        logits: `[rows, vocabulary]`.
        temperature: 0 takes the likeliest token, and so does whatever is below `COLDEST`.
        top_p: sample among the likeliest tokens that together hold this much probability (arXiv:1904.09751).
        uniforms: a number in [0, 1) for each row; not looked at where the likeliest is taken.
        top_k: sample among so many likeliest tokens, of which `top_p` is a share; 0 is off.
        min_p: sample among tokens at least so many times as likely as the likeliest, of which `top_p` is a share; 0 is off.

    Returns:
        Tokens `[rows]` int64, and their log-probabilities `[rows]` fp32 in the distribution that they are drawn from:
        `softmax(logits / temperature)` over the tokens that `min_p`, `top_k` and `top_p` leave. Greedy reports `softmax(logits)`,
        uncut.

    """
    logits = logits.float()
    if temperature < COLDEST:
        tokens = logits.argmax(-1, keepdim=True)
    else:
        logits = logits if temperature == 1.0 else logits / temperature
        if top_k or min_p:
            logits = logits.masked_fill(~likely(logits, top_k, min_p), -torch.inf)
        probs = logits.softmax(-1)
        if top_p < 1.0:
            kept = nucleus(probs, top_p)
            logits, probs = logits.masked_fill(~kept, -torch.inf), probs * kept
        tokens = _invert(probs, torch.tensor(uniforms, dtype=torch.float64, device=probs.device)[:, None])
    return tokens[:, 0], logits.gather(-1, tokens)[:, 0] - logits.logsumexp(-1)


def _invert(probs: Tensor, points: Tensor) -> Tensor:
    """Return the token `[rows, 1]` at which the running sum of `probs` passes `points` `[rows, 1]` of the total.

    In two steps, of blocks and within one, so that only short sums need fp64: a running sum over 150,000 fp32 numbers is
    off by more than many of them, and in fp64 it costs as much as a layer.
    """
    blocks = pad(probs, (0, -probs.shape[-1] % BLOCK)).unflatten(-1, (-1, BLOCK))
    ends = blocks.sum(-1).cumsum(-1, dtype=torch.float64)
    points = points * ends[:, -1:]
    block = _passed(ends, points)
    inside = blocks.gather(1, block[..., None].expand(-1, 1, BLOCK))[:, 0].cumsum(-1, dtype=torch.float64)
    before = ends.gather(-1, block) - inside[:, -1:]
    return block * BLOCK + _passed(inside, (points - before).clamp(min=0))  # below 0 by rounding: see `_passed`


def _passed(sums: Tensor, points: Tensor) -> Tensor:
    """Return where the sums pass the points, which are not below 0, so never where a sum does not grow; past the end, where
    they stop growing, for only rounding leads there.
    """
    last = (sums < sums[:, -1:]).sum(-1, keepdim=True)
    return torch.minimum(torch.searchsorted(sums, points, right=True), last)


def uniform(seed: int, request: int, position: int) -> float:
    """Return a number in [0, 1) that depends on nothing but the three arguments (SplitMix64 over each in turn)."""
    state = 0
    for part in (seed, request, position):
        state = (state + part + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return (state >> 11) / (1 << 53)
