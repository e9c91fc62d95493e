"""Every law of algorithms that is asked in one process fails for the fault it is about: an objective with one mistake."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

from gym_sft import SFT
from gym_testkit.bench import Bench
from gym_testkit.distribution import Brought
from gym_testkit.laws import algorithms
from gym_torch.batch import Batch
from gym_torch.objective import Objective, Scores

Law = Callable[[Brought, Bench], None]
Loss = tuple[Tensor, Mapping[str, Tensor]]


class LearnsNothing(Objective):
    def loss(self, policy: Scores, batch: Batch) -> Loss:
        log_probs = policy(batch)
        return -(log_probs.detach() + 0 * log_probs).sum(), {}


class DrawsByItself(Objective):
    def loss(self, policy: Scores, batch: Batch) -> Loss:
        return -policy(batch).sum() * random.SystemRandom().uniform(0.5, 1.5), {}


class AveragesOverTheBatch(Objective):
    def loss(self, policy: Scores, batch: Batch) -> Loss:
        return -policy(batch).sum() / len(batch.segments), {}


class CountsFromTheStartOfTheBatch(Objective):
    def loss(self, policy: Scores, batch: Batch) -> Loss:
        log_probs = policy(batch)
        return -(log_probs * torch.linspace(0.5, 1.5, len(log_probs))).sum(), {}


class IsAPercentOff(Objective):
    def loss(self, policy: Scores, batch: Batch) -> Loss:
        return -1.01 * policy(batch).sum(), {}


@pytest.mark.parametrize(
    ("fault", "law"),
    [
        (LearnsNothing, algorithms.learns),
        (DrawsByItself, algorithms.same_seed),
        (AveragesOverTheBatch, algorithms.accumulation),
        (CountsFromTheStartOfTheBatch, algorithms.packing),
        (IsAPercentOff, algorithms.oracle),
    ],
)
def test_a_law_catches_its_fault(bench: Bench, monkeypatch: pytest.MonkeyPatch, fault: type, law: Law) -> None:
    monkeypatch.setattr(SFT, "objective", f"{__name__}:{fault.__name__}")
    with pytest.raises(AssertionError):
        law(Brought("algorithms", "sft", SFT), bench)
