"""Compares an objective of gym-torch with its author's float64 formula, in value and in gradient."""

from __future__ import annotations

from copy import deepcopy
from typing import cast

import torch
from transformers import AutoModelForCausalLM

from gym_core import Recipe
from gym_core.component import load_object
from gym_testkit.bench import Bench
from gym_torch import TorchAlgorithm
from gym_torch.layout import layout_for
from gym_torch.policy import Policy

EXAMPLES = 6


def compare(recipe: Recipe, bench: Bench) -> tuple[float, float]:
    """Return the relative differences of the loss and of its gradient over all parameters, on the tiny model."""
    config = cast(TorchAlgorithm, recipe.algorithm)
    assert recipe.data is not None, "the recipe has no data"
    prepared = recipe.data.build(tokenizer=bench.model(), rows=type(config).rows, seed=0).train
    examples = [prepared[number] for number in range(min(EXAMPLES, len(prepared)))]
    model = AutoModelForCausalLM.from_pretrained(bench.model(), dtype=torch.float32)
    precise = deepcopy(model).double()

    objective = load_object(config.objective)(config, layout_for(model))
    loss, _ = objective.loss(Policy(model), objective.collate(examples))
    loss.backward()
    wanted = load_object(type(config).oracle)(config, precise, examples)
    wanted.backward()

    found, right = (
        torch.cat([p.grad.double().flatten() for p in each.parameters() if p.grad is not None])
        for each in (model, precise)
    )
    value = abs(loss.item() - wanted.item()) / abs(wanted.item())
    return value, ((found - right).norm() / right.norm()).item()
