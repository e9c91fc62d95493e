"""DELLA (arXiv:2406.11617, section 3.1): drop numbers at random, small ones of a row more often."""

from __future__ import annotations

import torch
from torch import Tensor

from gym_core import GymError
from gym_deltasoup.config.sparse import DELLA
from gym_deltasoup.merging.drawn import thinned
from gym_deltasoup.merging.rule import MergeRule, Plan, after_change
from gym_deltasoup.merging.updates import Chunk, Updates


class DELLARule(MergeRule):
    """Drops by the rank of a magnitude in its row."""

    def __init__(self, config: DELLA) -> None:
        """Hold the options."""
        self.config = config

    def plan(self, updates: Updates, hostile: int) -> Plan:
        """Return the plan."""
        config = self.config
        mean, half = updates.drop_rates(config.drop_rate), config.epsilon / 2
        for name, densities in zip(updates.ids, updates.densities, strict=True):
            beyond = densities[((densities <= half) | (densities > 1 - half + 1e-9)) & (densities < 1)]
            if len(beyond):
                why = f"{name} keeps {beyond[0]:g} of its numbers, and {half:g} more or less is beyond 0 and 1"
                raise GymError(why, key="inputs.density", fix="give a smaller `epsilon`, or another density")

        def dropped(chunk: Chunk) -> Tensor:
            rates = drop_rates(chunk.values, updates.spans[chunk.tensor].row, mean[:, chunk.tensor], config.epsilon)
            return thinned(chunk, updates.ids, rates, config.seed, config.rescale)

        return after_change(config.rule, updates, dropped, hostile, whole_rows=True)


def drop_rates(values: Tensor, row: int, mean: Tensor, epsilon: float) -> Tensor:
    """Return the probability of each number `[inputs, rows * row]` to be dropped, from its rank in its row, 0 the smallest.

    `mean` is that of each input `[inputs]`; where it is 0 nothing is dropped.
    """
    rows = values.view(len(values), -1, row)
    ranks = rows.abs().argsort(dim=-1, stable=True).argsort(-1).double()
    spread = epsilon / 2 - epsilon * ranks / (row - 1) if row > 1 else torch.zeros_like(ranks)
    mean = mean[:, None, None]
    return torch.where(mean > 0, mean + spread, 0.0).view(values.shape)
