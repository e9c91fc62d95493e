"""What a request changes in logits before a token is chosen: bias, penalties, the mask of a grammar, words that are not drawn,
ends that come too early, and `min_p` (arXiv:2407.01082), in this order.

Where a step would leave no token, what came before it counts: a reply that its grammar has brought to its end is over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gym_serve.batching.grammar import Mask
from gym_serve.contract import Sampling
from gym_torch.generation.row import Row

Step = Callable[[Tensor], Tensor]


def processors(sampling: Sampling, row: Row, mask: Mask | None, words: Sequence[Sequence[int]] = ()) -> Step | None:
    """Return what changes the logits `[vocabulary]` of a row; None where nothing does. `words` are the tokens of bad words."""
    steps: list[Step] = []
    if sampling.logit_bias:
        tokens = torch.tensor(list(sampling.logit_bias))
        values = torch.tensor(list(sampling.logit_bias.values()), dtype=torch.float32)
        steps.append(lambda logits: logits.index_add(0, tokens.to(logits.device), values.to(logits.device)))
    if sampling.repetition_penalty != 1.0:
        steps.append(lambda logits: _repeated(logits, row, sampling.repetition_penalty))
    if sampling.presence_penalty or sampling.frequency_penalty:
        steps.append(lambda logits: _penalized(logits, row, sampling.presence_penalty, sampling.frequency_penalty))
    if mask is not None:
        steps.append(mask)
    if words:
        steps.append(lambda logits: _without(logits, _completing(row.completion.tokens, words)))
    if sampling.min_tokens:
        ends = sorted(row.stop)
        steps.append(lambda logits: _unended(logits, row, sampling.min_tokens, ends))
    if sampling.min_p and sampling.temperature:
        least = sampling.temperature * math.log(sampling.min_p)
        steps.append(lambda logits: logits.masked_fill(logits < logits.max() + least, -torch.inf))
    if not steps:
        return None

    def adjust(logits: Tensor) -> Tensor:
        for step in steps:
            logits = step(logits)
        return logits

    return adjust


def bad_words(words: Sequence[str], encode: Callable[[str], list[int]]) -> list[tuple[int, ...]]:
    """Return the tokens of words that are not to be written, with a space before them and without."""
    found = [tuple(encode(space + word.lstrip())) for word in words for space in ("", " ")]
    return [each for each in dict.fromkeys(found) if each]


def _completing(made: Sequence[int], words: Sequence[Sequence[int]]) -> list[int]:
    """Return the tokens that would complete a word behind those that were made."""
    return [last for *begun, last in words if len(begun) <= len(made) and list(made[len(made) - len(begun) :]) == begun]


def _unended(logits: Tensor, row: Row, least: int, ends: Sequence[int]) -> Tensor:
    return logits if len(row.completion.tokens) >= least else _without(logits, ends)


def _without(logits: Tensor, tokens: Sequence[int]) -> Tensor:
    """Return the logits without some tokens, unless none would be left."""
    there = [token for token in tokens if token < len(logits)]
    if not there:
        return logits
    left = logits.index_fill(0, torch.tensor(there, device=logits.device), -torch.inf)
    return logits if bool(left.isneginf().all()) else left


def _repeated(logits: Tensor, row: Row, factor: float) -> Tensor:
    """Make tokens of prompt and reply less likely (arXiv:1909.05858, section 4.1)."""
    seen = torch.tensor([*row.prompt, *row.completion.tokens], device=logits.device).unique()
    found = logits[seen]
    return logits.index_copy(0, seen, torch.where(found > 0, found / factor, found * factor))


def _penalized(logits: Tensor, row: Row, presence: float, frequency: float) -> Tensor:
    """Subtract from tokens of the reply, as the OpenAI API says."""
    if not row.completion.tokens:
        return logits
    made = torch.tensor(row.completion.tokens, device=logits.device)
    tokens, counts = made.unique(return_counts=True)
    return logits.index_add(0, tokens, -(presence + frequency * counts.to(logits.dtype)))
