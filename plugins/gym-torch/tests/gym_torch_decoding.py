"""What the tests of generation share: prompts, a tokenizer of numbers, and decoding without a batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from gym_torch.attention import cached_attention
from gym_torch.kernels import few_row_products

PROMPTS = [[number % 49 + 1 for number in range(start, start * 2 + 3)] for start in (1, 7, 3, 12, 5, 2, 9, 4)]


@pytest.fixture(params=[False, True], ids=["by torch", "by kernels"])
def kernels(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Decode by torch, or by the kernels of the engine whatever a trial says."""
    both = cached_attention.CHOICES, few_row_products.CHOICES
    for each in both:
        each.always = request.param
    yield request.param
    for each in both:
        each.always = None


@dataclass(frozen=True)
class BareTokenizer:
    """A tokenizer of numbers."""

    eos_id: int = 0
    pad_id: int = 0

    def chat(
        self, messages: list[dict[str, str]], tools: None = None, generation_prompt: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        ids = [int(word) for message in messages for word in message["content"].split()]
        return np.array(ids + [49] * generation_prompt, np.int32), np.zeros(len(ids) + generation_prompt, bool)

    def decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))


@torch.no_grad()
def one_by_one(model: PreTrainedModel, prompt: list[int], most: int) -> tuple[list[int], list[float]]:
    """Decode greedily without a cache and without a batch."""
    tokens, log_probs = list(prompt), []
    while len(tokens) < len(prompt) + most and (len(tokens) == len(prompt) or tokens[-1] != 0):
        after = model(torch.tensor([tokens])).logits[0, -1].log_softmax(-1)
        tokens.append(int(after.argmax()))
        log_probs.append(float(after.max()))
    return tokens[len(prompt) :], log_probs
