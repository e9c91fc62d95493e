"""The losses of embeddings once more, slow and obvious, for tests to compare with. Shares no code with the objective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gym_embedding import Embedding
from gym_embedding.samples import TextsSample


def embedding(
    config: Embedding,
    model: PreTrainedModel,
    examples: Sequence[TextsSample],
    auxiliary: Mapping[str, Any] | None = None,
) -> Tensor:
    """Return the summed loss of all rows, each of which competes with all others."""
    rows = []
    for example in examples:
        texts, start = [], 0
        for length in example.lengths:
            tokens = example.tokens[start : start + length].tolist()
            states = model.base_model(input_ids=torch.tensor([tokens])).last_hidden_state[0]
            texts.append((tuple(tokens), states[-1] if config.pooling == "last_token" else states.mean(0)))
            start += length
        rows.append((texts, example.score))
    width = len(rows[0][0][0][1])
    return sum((_LOSSES[config.loss](config, rows, dim) for dim in config.matryoshka_dims or [width]), torch.zeros(()))


def _cosine(one: Tensor, other: Tensor, dim: int) -> Tensor:
    one, other = one[:dim], other[:dim]
    return (one * other).sum() / (one.square().sum().sqrt() * other.square().sum().sqrt())


def _info_nce(config: Embedding, rows: Sequence[Any], dim: int) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    belong = {(texts[0][0], texts[1][0]) for texts, _ in rows}
    for here, (texts, _) in enumerate(rows):
        (asked, anchor), (told, positive) = texts[:2]
        own = _cosine(anchor, positive, dim)
        margin = config.false_negative_margin
        compete = [own]
        for there, (others, _) in enumerate(rows):
            for place, (words, document) in enumerate(others[1:]):
                cosine = _cosine(anchor, document, dim)
                false = margin is not None and cosine > own + margin
                if not ((here, 0) == (there, place) or (asked, words) in belong or false):
                    compete.append(cosine)
        ways = [
            -torch.log(torch.exp(own / config.temperature) / sum(torch.exp(c / config.temperature) for c in compete))
        ]
        if config.symmetric:
            compete = [own]
            for there, (others, _) in enumerate(rows):
                words, query = others[0]
                cosine = _cosine(query, positive, dim)
                false = margin is not None and cosine > own + margin
                if not (here == there or (words, told) in belong or false):
                    compete.append(cosine)
            back = sum(torch.exp(cosine / config.temperature) for cosine in compete)
            ways.append(-torch.log(torch.exp(own / config.temperature) / back))
        total = total + sum(ways) / len(ways)
    return total


def _cosent(config: Embedding, rows: Sequence[Any], dim: int) -> Tensor:
    pairs = [(_cosine(texts[0][1], texts[1][1], dim), score) for texts, score in rows]
    inside = torch.ones((), dtype=torch.float64)
    for higher, better in pairs:
        for lower, worse in pairs:
            if better > worse:
                inside = inside + torch.exp((lower - higher) / config.temperature)
    return len(rows) * torch.log(inside)


def _squared(config: Embedding, rows: Sequence[Any], dim: int) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for texts, score in rows:
        total = total + (_cosine(texts[0][1], texts[1][1], dim) - score) ** 2
    return total


_LOSSES = {"infonce": _info_nce, "cosent": _cosent, "cosine": _squared}
