"""The loss on samples that are held out."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from gym_core import DataError
from gym_torch.distributed.collectives import over_processes
from gym_torch.loop.job import Job
from gym_torch.loop.step_batches import place
from gym_torch.loop.step_metrics import StepMetrics
from gym_torch.metrics import Mean
from gym_torch.source import Step


class HeldOutLoss:
    """Measures what the objective measures in training, without dropout."""

    def __init__(self, step: Step) -> None:
        """Take all held-out samples, or this process's part of them."""
        self.step = step

    @torch.no_grad()
    def __call__(self, job: Job) -> Mapping[str, float] | None:
        """Return `loss` and the other metrics of the objective; None where a signal came."""
        job.policy.eval()
        metrics, weight, batches = StepMetrics(), 0.0, self.step.batches
        for number, examples in enumerate(batches, start=1):
            job.ranks.at(place(job.progress.step, examples, "evaluation after step"))
            batch = job.objective.collate(examples)
            share = 1.0 if number <= len(batches) - self.step.spare else 0.0
            weight += job.weight(batch) * share
            loss, found = job.loss(batch)
            metrics.add({"loss": Mean(loss), **found}, share)
            if job.stopped:
                break
        job.policy.train()
        if job.stopped:
            return None
        (total,) = over_processes(job.accelerator, [weight])
        if not total:
            raise DataError("nothing to predict in the validation split", key="data.validation")
        return metrics.reduced(job.accelerator, metrics.numbers().tolist(), total)
