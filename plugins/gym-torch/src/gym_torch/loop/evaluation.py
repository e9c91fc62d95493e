"""The loss on samples that are held out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from gym_core import DataError
from gym_torch.distributed.collectives import over_processes
from gym_torch.loop.job import Job
from gym_torch.loop.step_batches import place
from gym_torch.loop.step_metrics import StepMetrics
from gym_torch.metrics import Mean, Metrics
from gym_torch.source import Step


class HeldOutLoss:
    """Measures what the objective measures in training, without dropout."""

    def __init__(self, *steps: Step, names: Sequence[str] = ()) -> None:
        """Take all held-out samples, or this process's part of them; where they have names, each of several parts."""
        self.steps, self.names = steps, names

    @torch.no_grad()
    def __call__(self, job: Job) -> Mapping[str, float] | None:
        """Return `loss` and the other metrics of the objective, with those of parts by name; None where a signal came."""
        job.policy.eval()
        every, parts = _Counted(), [_Counted() for _ in self.names]
        for part, step in enumerate(self.steps):
            for number, examples in enumerate(step.batches, start=1):
                job.ranks.at(place(job.progress.step, examples, "evaluation after step"))
                batch = job.objective.collate(examples)
                share = 1.0 if number <= len(step.batches) - step.spare else 0.0
                weight, (loss, found) = job.weight(batch) * share, job.loss(batch)
                for counted in (every, *parts[part : part + 1]):
                    counted.add(weight, {"loss": Mean(loss), **found}, share)
                if job.stopped:
                    break
        job.policy.train()
        if job.stopped:
            return None
        named = {
            f"{name}_{key}": value
            for name, part in zip(self.names, parts, strict=True)
            for key, value in part.reduced(job).items()
        }
        return {**named, **every.reduced(job)}


class _Counted:
    """What was measured of some samples."""

    def __init__(self) -> None:
        self._metrics, self._weight = StepMetrics(), 0.0

    def add(self, weight: float, metrics: Metrics, share: float) -> None:
        """Add those of a batch."""
        self._metrics.add(metrics, share)
        self._weight += weight

    def reduced(self, job: Job) -> dict[str, float]:
        """Return the values over all processes. Raises DataError where there is nothing to predict."""
        (total,) = over_processes(job.accelerator, [self._weight])
        if not total:
            raise DataError("nothing to predict in the validation split", key="data.validation")
        return self._metrics.reduced(job.accelerator, self._metrics.numbers().tolist(), total)
