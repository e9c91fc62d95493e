"""SCE (arXiv:2408.07990, section 3.2): select where changes differ most, calculate weights of their squares, erase minorities."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gym_deltasoup.config.sparse import SCE
from gym_deltasoup.merging.magnitudes import magnitudes
from gym_deltasoup.merging.rule import MergeRule, Plan
from gym_deltasoup.merging.ties import elected
from gym_deltasoup.merging.updates import Changed, Chosen, Chunk, Updates


class SCERule(MergeRule):
    """Looks at the spread of each number among the inputs."""

    def __init__(self, config: SCE) -> None:
        """Hold the options."""
        self.config = config

    def plan(self, updates: Updates, hostile: int) -> Plan:
        """Return the plan."""
        scopes, density = updates.scopes(self.config.scope), self.config.density
        of = {tensor: number for number, members in enumerate(scopes) for tensor in members}
        every = Changed(updates, lambda chunk: _variance(chunk.values).expand(len(chunk.values), -1))
        spread = Chosen(every, [0])
        kept = [int(density * _some(spread, members)) for members in scopes]
        asked = (
            count
            for count, members in zip(kept, scopes, strict=True)
            if any(updates.spans[each].end > updates.spans[each].begin for each in members)
        )
        least = magnitudes(spread, lambda size, said: torch.tensor([size - next(asked) + 1]), self.config.scope)[0]
        least[torch.tensor(kept) == 0] = torch.inf

        def selected(chunk: Chunk) -> Tensor:
            if density >= 1:
                return chunk.values
            return torch.where(_variance(chunk.values) >= least[of[chunk.tensor]], chunk.values, 0.0)

        squares = torch.zeros(len(updates.ids), len(scopes), dtype=torch.float64)
        for chunk in updates.chunks():
            squares[:, of[chunk.tensor]] += selected(chunk).double().square().sum(1)
        total = squares.sum(0)
        shares = torch.where(
            total > 0, squares / total.clamp(min=torch.finfo(torch.float64).tiny), 1 / len(updates.ids)
        )
        return Plan(lambda chunk: _combined(selected(chunk), shares[:, of[chunk.tensor]]))


def _combined(values: Tensor, shares: Tensor) -> Tensor:
    """Return the mean with these shares of those numbers whose sign is that of the sum without any."""
    sign = values.double().sum(0).sign()
    return elected(torch.where(values * sign > 0, values, 0.0), shares, normalize=True)


def _variance(values: Tensor) -> Tensor:
    return values.var(0, correction=0)


def _some(spread: Updates, members: Sequence[int]) -> int:
    """Return how many numbers are not the same in all inputs."""
    return sum(int(chunk.values[0].count_nonzero()) for chunk in spread.chunks(tensors=members))
