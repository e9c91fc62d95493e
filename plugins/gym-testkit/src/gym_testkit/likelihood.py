"""How likely a model finds what rows show as good, over what they show as bad: measured by plain transformers, without a loss."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from gym_core import Recipe
from gym_data.kinds import DataAlgorithm
from gym_testkit.bench import Bench

SHAPES = ("conversation", "text", "preference", "feedback")  #: of rows (`Algorithm.rows`) that show what is good
#: 1 for good and -1 for bad, tokens `[length]`, whether each is learnt `[length]`.
Texts = Iterator[tuple[float, Any, Any]]


@torch.no_grad()
def advantage(recipe: Recipe, model: Path, bench: Bench) -> float:
    """Return the mean log-probability of a token of what is good, less that of what is bad, in nats."""
    assert recipe.data is not None, "the recipe has no data"
    shape = cast(DataAlgorithm, recipe.algorithm).rows
    prepared = recipe.data.build(tokenizer=bench.model(), rows=shape, seed=0).train
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    sums: dict[float, list[float]] = {}
    for number in range(len(prepared)):
        for sign, tokens, trained in _texts(prepared[number], shape):
            sums.setdefault(sign, []).append(_mean(loaded, tokens, trained))
    return sum(sign * float(np.mean(values)) for sign, values in sums.items())


def _texts(example: Any, shape: str) -> Texts:
    tokens, trained = example.tokens, example.trained
    if shape == "preference":
        middle = example.shared + example.chosen
        for sign, side in ((1.0, slice(example.shared, middle)), (-1.0, slice(middle, None))):
            both = [np.concatenate([part[: example.shared], part[side]]) for part in (tokens, trained)]
            yield sign, both[0], both[1]
    else:
        yield (1.0 if shape != "feedback" or example.desirable else -1.0), tokens, trained


def _mean(model: PreTrainedModel, tokens: Any, trained: Any) -> float:
    ids = torch.from_numpy(np.asarray(tokens, dtype=np.int64))
    scores = model(ids[None]).logits[0, :-1].log_softmax(1).gather(1, ids[1:, None])[:, 0]
    return float(scores[torch.from_numpy(np.array(trained[1:]))].mean())
