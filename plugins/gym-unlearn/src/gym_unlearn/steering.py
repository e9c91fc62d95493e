"""RMU (arXiv:2403.03218): states at one layer are steered to a random direction on rows to forget, and held on rows to keep."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gym_core import RecipeError
from gym_torch.metrics import Metrics
from gym_torch.model.decoder_layers import layers_of
from gym_torch.objective import Scores
from gym_torch.policy import Policy, evaluating
from gym_torch.prompt_responses import ResponseBatch
from gym_torch.reference import Reference, Scorer
from gym_torch.rounding import rounding
from gym_unlearn.config import RMU
from gym_unlearn.objective import AnswersObjective


@dataclass(frozen=True, kw_only=True)
class SteeredBatch(ResponseBatch):
    """Answers, and the layer behind which states are steered."""

    layer: int | None  #: counted from 0; None: the one at 7/32 of the depth


class StatesPolicy(Policy[SteeredBatch]):
    """A policy that says what its states are behind a layer, beside those of its reference."""

    reference: Reference | None = None

    def forward(self, batch: SteeredBatch) -> Tensor:
        """Return the states that predict `batch.targets`, and below them those of the reference: `[2, n, dim]`, fp32.

        Without a reference, as in a plan, those are 0.
        """
        with rounding(batch.tokens.device, self.precision):
            known = None if self.reference is None else self._of_reference(batch)
            own = states(self, batch).float()
        return torch.stack([own, torch.zeros_like(own) if known is None else known])

    @torch.no_grad()
    def _of_reference(self, batch: SteeredBatch) -> Tensor:
        assert self.reference is not None
        with scored_by(self.reference.load()) as policy:
            return states(policy, batch).float()


@contextmanager
def scored_by(scorer: Scorer) -> Iterator[Policy[Any]]:
    """Return the policy of a reference, as it scores."""
    with evaluating(scorer.policy), scorer.without():
        yield scorer.policy


def states(policy: Policy[Any], batch: SteeredBatch) -> Tensor:
    """Return the states `[n, dim]` behind the layer of a batch that predict its targets, in the autocast of the caller."""
    found: list[Tensor] = []

    def reached(module: nn.Module, inputs: Any, output: Any) -> None:
        found.append(output[0] if isinstance(output, tuple) else output)

    parent, name, layers = layers_of(policy.model)
    last = number_of(layers, batch.layer)
    hook = layers[last].register_forward_hook(reached)
    setattr(parent, name, layers[: last + 1])  # what lies above computes nothing that is looked at
    try:
        policy.hidden(batch)
    finally:
        setattr(parent, name, layers)
        hook.remove()
    if not batch.apart:
        return found[0].flatten(0, 1)[batch.target_index]
    # Rows that are computed one by one have lost their padding.
    starts = torch.tensor([0, *(each.shape[1] for each in found[:-1])], device=batch.target_index.device).cumsum(0)
    rows, places = batch.target_index // batch.tokens.shape[1], batch.target_index % batch.tokens.shape[1]
    return torch.cat([each[0] for each in found])[starts[rows] + places]


def number_of(layers: nn.ModuleList, number: int | None) -> int:
    """Return which decoder layer is meant, by default that at 7/32 of the depth; the last one of fewer, as plans have them."""
    return min(7 * len(layers) // 32 if number is None else number, len(layers) - 1)


class SteeringObjective(AnswersObjective):
    """The squared distances of states from a random direction, and from what they were."""

    config: RMU
    policy: type[Policy[Any]] = StatesPolicy

    def check(self, model: PreTrainedModel) -> None:
        """Raise RecipeError where there is no such layer."""
        _, _, layers = layers_of(model)
        if (self.config.layer or 0) >= len(layers):
            raise RecipeError(
                f"the model has layers 0 to {len(layers) - 1}, and no layer {self.config.layer}",
                key="algorithm.layer",
                fix="name another, or leave it out",
            )

    def collate(self, examples: Any) -> SteeredBatch:
        """Lay the answers out, and say which layer."""
        return SteeredBatch(**vars(super().collate(examples)), layer=self.config.layer)

    def loss(self, policy: Scores[Any], batch: ResponseBatch) -> tuple[Tensor, Metrics]:
        """Return the summed losses of the answers, and both kinds by themselves."""
        own, known = policy(batch)
        aim = self.config.steering_coeff * direction(own.shape[1]).to(own)
        forget, retain = (batch.sums((own - other).square().mean(1)) / batch.lengths for other in (aim, known))
        loss, found = self.weighed(forget, retain, batch)
        return loss, found


def direction(size: int) -> Tensor:
    """Return a random unit vector `[size]` of positive numbers, the same for every run, process and resume."""
    drawn = torch.rand(size, generator=torch.Generator().manual_seed(size), dtype=torch.float64)
    return (drawn / drawn.norm()).float()
