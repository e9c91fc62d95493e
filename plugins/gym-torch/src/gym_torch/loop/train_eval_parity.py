"""Whether a policy computes in training what it computes in evaluation: losses that compare the two need it."""

from __future__ import annotations

from typing import Any

import torch

from gym_core import Recipe, RecipeError
from gym_torch.batch import Piece
from gym_torch.packing import Layout
from gym_torch.policy import Policy, evaluating

TOKENS = 32  #: of the text that a policy is checked with
TOLERANCE = 1e-3  #: nats


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
