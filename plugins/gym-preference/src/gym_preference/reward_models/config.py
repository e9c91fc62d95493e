"""Reward models as a recipe sees them: algorithms that learn to give numbers to responses. Nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from gym_torch import TorchAlgorithm


class RewardModel(TorchAlgorithm):
    """A reward model of outcomes: gives each response a number, higher for the chosen one of two (Bradley-Terry).

    What it makes is a model, or an adapter, with `value_head.safetensors` beside it: the reward `model` of gym-rl.

        loss = -log sigmoid(w - l - margin) + center_rewards_coefficient (w + l)^2

    w, l: what the head says of the chosen and of the rejected response, at its last token; margin: what the row
    says, else 0.

    Use it for: a reward for reinforcement learning, or to rank responses by, from pairs.
    """

    context_parallel: ClassVar[bool] = True
    rows: ClassVar[str] = "preference"
    streams: ClassVar[bool] = True
    measures_apart: ClassVar[bool] = True
    objective: ClassVar[str] = "gym_preference.reward_models.outcome:RewardLoss"
    oracle: ClassVar[str] = "gym_preference.reward_models.naive_losses:reward_model"

    center_rewards_coefficient: Annotated[float, Field(ge=0)] = 0.0
    """Coefficient that centers rewards: weight of the squared sum of the two rewards of a pair. 0.01 keeps their mean near 0,
    which a loss of differences leaves open (arXiv:2312.09244)."""

    def evaluation_metrics(self) -> Mapping[str, str]:
        """Return the loss, how often the chosen response earns more, and how much more."""
        return {**super().evaluation_metrics(), "accuracy": "higher", "margin": "higher"}

    def shares_prefixes(self) -> bool:
        """Return that samples may: only what is scored counts in the loss."""
        return True


class ProcessRewardModel(TorchAlgorithm):
    """A reward model of steps: says how likely each step of a response is right, from responses labelled step by step.

    What it makes is a model, or an adapter, with `value_head.safetensors` beside it: the reward `process-model` of gym-rl.

        loss = -[y log sigmoid(s) + (1 - y) log sigmoid(-s)],  summed over the steps

    s: what the head says at the last token of a step; y: how likely the row says that it is right.

    Use it for: responses of several steps that were labelled one by one: it finds the step that went wrong.
    """

    context_parallel: ClassVar[bool] = True
    rows: ClassVar[str] = "stepwise"
    streams: ClassVar[bool] = True
    measures_apart: ClassVar[bool] = True
    objective: ClassVar[str] = "gym_preference.reward_models.process:ProcessLoss"
    oracle: ClassVar[str] = "gym_preference.reward_models.naive_losses:process_reward_model"

    def evaluation_metrics(self) -> Mapping[str, str]:
        """Return the loss, and how often a step is judged as its label says."""
        return {**super().evaluation_metrics(), "accuracy": "higher"}

    def shares_prefixes(self) -> bool:
        """Return that samples may: only what is scored counts in the loss."""
        return True
