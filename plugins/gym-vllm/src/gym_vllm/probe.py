"""Which weights an engine computes with, told from what it computes: the log-probabilities of a text.

A name for the weights is what whoever gave it says; these numbers are the engine's own.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import torch
from transformers import PreTrainedModel

from gym_core import GymError
from gym_data.tokenizer import Tokenizer
from gym_torch.policy import evaluating

TEXT = f"{string.printable}Gym asks: 1 + 1 = 2?\n\tdef f(x): return x ** 2  # \u00fcn\u00efc\u00f6de, \u6f22\u5b57"
ARITHMETIC = 0.25  #: nats a token, mean: what other precision and kernels make of the same weights, and hardly more
REPEATED = 0.05  #: what the same engine makes of them at another time, among other requests


class Probe:
    """A text, and what weights make of it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Take the tokens of the text."""
        self.tokens = tokenizer.encode(TEXT)

    @torch.no_grad()
    def of(self, model: PreTrainedModel) -> list[float]:
        """Return the log-probability of each token but the first under a model, at temperature 1."""
        tokens = torch.tensor([self.tokens], device=model.device)
        with evaluating(model):
            scores = model(input_ids=tokens, use_cache=False).logits[0, :-1].float().log_softmax(-1)
        found: list[float] = scores.gather(1, tokens[0, 1:, None])[:, 0].tolist()
        return found

    def read(self, said: Sequence[Mapping[Any, Any] | None] | None, key: type, value: str = "") -> list[float]:
        """Return the same of what vLLM calls `prompt_logprobs`: a mapping by token for each but the first.

        Tokens are of type `key` there. Raises GymError where they are something else.
        """
        try:
            places = list(said or ())[1:]
            found = [
                place[key(token)] for place, token in zip(places, self.tokens[1:], strict=True) if place is not None
            ]
            return [float(one[value]) if value else float(one.logprob) for one in found]
        except (TypeError, KeyError, ValueError, AttributeError):
            raise GymError(
                "vLLM does not say how likely the tokens of a prompt are, which tells its weights",
                key="algorithm.rollouts",
                fix="take a vLLM that knows prompt_logprobs; a server may also go without, by `verify: false`",
            ) from None


def apart(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the mean difference of log-probabilities, in nats; infinite where there is nothing to compare."""
    pairs = list(zip(one, other, strict=True))
    return fmean(abs(a - b) for a, b in pairs) if pairs else float("inf")
