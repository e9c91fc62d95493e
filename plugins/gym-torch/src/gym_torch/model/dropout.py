"""Dropout switched off, for losses that compare: two passes over the same tokens differ then by their weights alone.

What switches a part of a model off at random in training alone would stand in the policy and not in what it is compared with.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from gym_core import Recipe, RecipeError
from gym_torch.batch import Piece
from gym_torch.packing import Layout
from gym_torch.policy import Policy, evaluating

TOKENS = 32  #: of the text that a policy is checked with
RANDOM = ("drop", "jitter")  #: in the names of what transformers' layers and adapters scale their random numbers by
TOLERANCE = 1e-3  #: nats


def disable_dropout(model: nn.Module) -> bool:
    """Set every dropout of a model to 0, in layers of their own and in numbers of other layers; return whether there was one."""
    found = False
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            found, module.p = found or module.p > 0, 0.0
        for name, value in list(vars(module).items()):
            if isinstance(value, float) and value > 0 and any(part in name.lower() for part in RANDOM):
                setattr(module, name, 0.0)
                found = True
    return found


@torch.no_grad()
def check_same_in_training(policy: Policy[Any], layout: Layout, recipe: Recipe) -> None:
    """Raise RecipeError where a policy computes other log-probabilities in training mode than in evaluation mode.

    The policy is in training mode afterwards.
    """
    vocabulary = policy.model.config.get_text_config().vocab_size
    tokens = torch.arange(TOKENS).remainder(vocabulary).int().numpy()
    batch = layout.lay_out([Piece("check", tokens, torch.arange(TOKENS).gt(0).numpy())], ())
    batch = batch.to(next(policy.parameters()).device)
    with torch.random.fork_rng():
        learnt = policy.train().log_probs(batch)
    with evaluating(policy):
        asked = policy.log_probs(batch)
    apart = float((learnt - asked).abs().max())
    if apart <= TOLERANCE:
        return
    raise RecipeError(
        f"in training the policy computes other log-probabilities ({apart:.2g} nats apart) than where it is compared",
        key="adapter" if recipe.adapter else "model",
        fix=f"{'set `adapter: lora`' if recipe.adapter else 'name another model'}, or an algorithm without a comparison",
    )
