"""A reference that follows the policy: every so many steps its weights move towards those that train (arXiv:2404.09656)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gym_core import GymError, RecipeError
from gym_torch.reference import Reference

PREFIX = "reference/"  #: how the names of its weights begin in a checkpoint


class FollowingReference:
    """Moves a reference, which has weights of its own.

    After every `every` steps they become `alpha` times those of the policy and `1 - alpha` times their own. How far that has gone
    is in checkpoints, so that a run that goes on is measured against the same reference.
    """

    def __init__(self, reference: Reference, every: int, alpha: float) -> None:
        """Take the reference; nothing is loaded yet. Raises RecipeError where it is the policy without its adapter."""
        if reference.further.path is None and reference.without:
            raise RecipeError(
                "the reference is the model without its adapter, and has no weights of its own that could follow the policy",
                key="algorithm.ref_model_sync_steps",
                fix="train the weights of the model (`adapter: full`), or leave it out",
            )
        self.reference, self.every, self.alpha = reference, every, alpha
        self.moved = 0  #: step after which it moved last

    @torch.no_grad()
    def before(self, step: int) -> None:
        """Move where that is due when `step` steps are taken: once, also where a run goes on there."""
        if step % self.every or step <= self.moved:
            return
        policy = dict(self.reference.policy.model.named_parameters())
        for name, weight in self._weights().items():
            weight.lerp_(policy[name], self.alpha)
        self.moved = step

    def tensors(self) -> dict[str, Tensor]:
        """Return its weights for a checkpoint; none where it is still what it began as."""
        return {PREFIX + name: weight for name, weight in self._weights().items()} if self.moved else {}

    @torch.no_grad()
    def load(self, moved: int, tensors: Mapping[str, Tensor]) -> None:
        """Take up the weights that it had after it moved at step `moved`, among the `tensors` of a checkpoint."""
        self.moved = moved
        for name, weight in self._weights().items() if moved else ():
            weight.copy_(tensors[PREFIX + name])

    def _weights(self) -> dict[str, Tensor]:
        """Return its weights that train in the policy. Raises GymError where it is another model."""
        own = dict(self.reference.load().policy.model.named_parameters())
        for name, weight in self.reference.policy.model.named_parameters():
            if name not in own or own[name].shape != weight.shape:
                raise GymError(
                    f"the reference cannot follow the policy: {name} is another weight there, or none",
                    key=self.reference.further.key,
                    fix="name a model of the same shape, or leave `ref_model_sync_steps` out",
                )
        trained = {name for name, weight in self.reference.policy.model.named_parameters() if weight.requires_grad}
        return {name: weight for name, weight in own.items() if name in trained}
