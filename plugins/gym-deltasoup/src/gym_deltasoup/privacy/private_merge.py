"""The Gaussian mechanism on a merge: changes cut to a norm, a rule that no one of them moves far, and noise on what it says."""

from __future__ import annotations

import torch
from torch import Tensor

from gym_deltasoup.config.privacy import DifferentialPrivacy
from gym_deltasoup.kinds import name_of
from gym_deltasoup.merging.rule import MergeRule, Plan, after_change
from gym_deltasoup.merging.updates import Chunk, Updates
from gym_deltasoup.privacy.noise import normal
from gym_deltasoup.robust.norm_bound import cut


class DifferentialPrivacyRule(MergeRule):
    """A rule between a cut and noise. What the rule would tell of the inputs is not told: it was not noised."""

    def __init__(self, config: DifferentialPrivacy) -> None:
        """Hold the options."""
        self.config = config

    def plan(self, updates: Updates, hostile: int) -> Plan:
        """Return the plan. Raises GymError where no bound is known of how far one input moves the rule."""
        config, count = self.config, len(updates.ids)
        sigma = config.sigma(count, hostile)
        cuts = cut(_norms(updates), config.clip)[:, None]
        behind = after_change(config.private_rule(), updates, lambda chunk: chunk.values * cuts, hostile)

        def noised(chunk: Chunk) -> Tensor:
            found = behind.combine(chunk)
            return (found + normal(len(found), sigma)).to(chunk.values.dtype)

        told = {
            "mechanism": "gaussian",
            "neighbours": "what one input holds",
            "rule": name_of(config.private_rule()),
            "configured_rule": name_of(config.rule),
            "epsilon": config.epsilon,
            "delta": config.delta,
            "clip": config.clip,
            "sensitivity": config.moved_by(count, hostile),
            "sigma": sigma,
            "noise_to_signal": sigma * updates.size**0.5 / config.clip,
        }
        return Plan(noised, behind.whole_rows, {"privacy": told})


def _norms(updates: Updates) -> Tensor:
    """Return the norm of each input, to the last digit: fp64 `[inputs]`."""
    squares = torch.zeros(len(updates.ids), dtype=torch.float64)
    for chunk in updates.chunks():
        squares += (chunk.values.double() ** 2).sum(1)
    return squares.sqrt()
