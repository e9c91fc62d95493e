"""Compares an objective of gym-torch with its author's float64 formula, in value and in gradient."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import cast

import torch
from transformers import AutoModelForCausalLM

from gym_core import Recipe
from gym_core.component import construct, load_object
from gym_testkit.bench import Bench
from gym_torch import TorchAlgorithm
from gym_torch.auxiliary_module import AuxiliaryModule
from gym_torch.model.layout_support import layout_for

EXAMPLES = 6


def compare(recipe: Recipe, bench: Bench) -> tuple[float, float]:
    """Return the relative differences of the loss and of its gradient over all parameters, on the tiny model."""
    config = cast(TorchAlgorithm, recipe.algorithm)
    assert recipe.data is not None, "the recipe has no data"
    prepared = recipe.data.build(tokenizer=bench.model(), rows=type(config).rows, seed=0).train
    examples = [prepared[number] for number in range(min(EXAMPLES, len(prepared)))]
    model = AutoModelForCausalLM.from_pretrained(bench.model(), dtype=torch.float32)
    precise = deepcopy(model).double()

    objective = construct(config.objective, config, layout_for(model))
    auxiliary = _drawn(objective.auxiliary_modules(model))
    exactly = {name: deepcopy(module).double() for name, module in auxiliary.items()}
    loss, _ = objective.loss(objective.policy(model, auxiliary=auxiliary), objective.collate(examples))
    loss.backward()
    oracle = load_object(type(config).oracle)
    wanted = oracle(config, precise, examples, **({"auxiliary": exactly} if exactly else {}))
    wanted.backward()

    found, right = (
        torch.cat([p.grad.double().flatten() for each in whole for p in each.parameters() if p.grad is not None])
        for whole in ([model, *auxiliary.values()], [precise, *exactly.values()])
    )
    value = abs(loss.item() - wanted.item()) / abs(wanted.item())
    return value, ((found - right).norm() / right.norm()).item()


@torch.no_grad()
def _drawn(auxiliary: Mapping[str, AuxiliaryModule]) -> Mapping[str, AuxiliaryModule]:
    """Return what is trained beside the model with weights as if it had been: some begin at zero, where gradients vanish."""
    generator = torch.Generator().manual_seed(0)
    for module in auxiliary.values():
        for weight in module.parameters():
            weight.normal_(0, 0.5, generator=generator)
    return auxiliary
