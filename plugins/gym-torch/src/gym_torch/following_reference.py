"""A reference that follows the policy: every so many steps its weights move towards those that train (arXiv:2404.09656)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from gym_core import GymError, RecipeError
from gym_torch.contribution import Parts
from gym_torch.reference import Reference
from gym_torch.source import Source, Step

PREFIX = "reference/"  #: how the names of its weights begin in a checkpoint
MOVED = "reference_moved"  #: in the state of a source: the step after which it moved last


class FollowingReference:
    """Moves a reference, which has weights of its own.

    After every `every` steps they become `alpha` times those of the policy and `1 - alpha` times their own. How far that has gone
    is in checkpoints, so that a run that goes on is measured against the same reference.
    """

    def __init__(
        self, reference: Reference, every: int, alpha: float, whole: Callable[[Tensor], Tensor] = torch.Tensor.detach
    ) -> None:
        """Take the reference; nothing is loaded yet. `whole` gathers a weight of the policy that may lie in shards.

        Raises RecipeError where the reference is the policy without its adapter.
        """
        if reference.further.path is None and reference.without:
            raise RecipeError(
                "the reference is the model without its adapter, and has no weights of its own that could follow the policy",
                key="algorithm.ref_model_sync_steps",
                fix="train the weights of the model (`adapter: full`), or leave it out",
            )
        self.reference, self.every, self.alpha, self.whole = reference, every, alpha, whole
        self.moved = 0  #: step after which it moved last

    @torch.no_grad()
    def before(self, step: int) -> None:
        """Move where that is due when `step` steps are taken: once, also where a run goes on there."""
        if step % self.every or step <= self.moved:
            return
        policy = dict(self.reference.policy.model.named_parameters())
        for name, weight in self._weights().items():
            weight.lerp_(self.whole(policy[name]).to(weight), self.alpha)
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


class Follows(Protocol):
    """Options of an algorithm whose reference can follow the policy, as `gym_torch.following_config` has them."""

    ref_model_sync_steps: int | None
    ref_model_mixup_alpha: float


class Followed(Source):
    """The steps of another source; as each begins, a reference moves where that is due."""

    def __init__(self, source: Source, reference: FollowingReference) -> None:
        """Take the steps, and the reference that the loss or the source asks."""
        self.source, self.reference = source, reference
        self.total, self.tokens = source.total, source.tokens

    def steps(self, start: int, rank: int = 0, world: int = 1) -> Iterator[Step[Any]]:
        """Yield the steps from number `start` on."""
        steps = self.source.steps(start, rank, world)
        for step in range(start, self.total):
            self.reference.before(step)
            yield next(steps)

    def largest(self, count: int) -> Sequence[int]:
        """Return the largest of its steps."""
        return self.source.largest(count)

    def extend(self, state: Mapping[str, Any], step: int) -> None:
        """Plan on from where a shorter plan ended."""
        self.source.extend(state, step)
        self.total, self.tokens = self.source.total, self.source.tokens

    def state_dict(self) -> dict[str, Any]:
        """Return what names the steps, and how far the reference is."""
        return {**self.source.state_dict(), MOVED: self.reference.moved}

    def tensors(self) -> dict[str, Tensor]:
        """Return what the source holds, and the weights of the reference."""
        return self.source.tensors() | self.reference.tensors()

    def load_state_dict(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Take both up. Raises DataError when the samples are others."""
        own = {name: tensor for name, tensor in tensors.items() if not name.startswith(PREFIX)}
        self.source.load_state_dict(state, own)
        self.reference.load(state[MOVED], tensors)


def followed(parts: Parts[Any, Any, Any, Any], source: Source) -> Source:
    """Return the steps of a run, as each of which begins its reference moves, where the recipe has that follow the policy."""
    if not parts.references:
        return source
    config: Follows = parts.config
    if config.ref_model_sync_steps is None:
        return source
    (reference,) = parts.references
    alpha = config.ref_model_mixup_alpha
    return Followed(source, FollowingReference(reference, config.ref_model_sync_steps, alpha, parts.spread.full))
