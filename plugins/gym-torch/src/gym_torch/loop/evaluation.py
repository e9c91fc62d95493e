"""The loss on samples that are held out."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gym_core import DataError
from gym_torch.loop.train_loop import Job, add, over_processes, place, together
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
        sums: dict[str, Tensor] = {}
        weight, batches = 0.0, self.step.batches
        for number, examples in enumerate(batches, start=1):
            job.ranks.at(place(job.progress.step, examples, "evaluation after step"))
            batch = job.objective.collate(examples)
            share = 1.0 if number <= len(batches) - self.step.spare else 0.0
            weight += job.objective.weight(batch) * share
            loss, metrics = job.objective.loss(job.policy, batch.to(job.accelerator.device))
            add(sums, {"loss": loss, **metrics}, share, job.objective.largest)
            if job.signals.received and job.accelerator.num_processes == 1:
                break
        job.policy.train()
        if job.signals.received and job.accelerator.num_processes == 1:
            return None
        (total,) = over_processes(job.accelerator, [weight])
        if not total:
            raise DataError("nothing to predict in the validation split", key="data.validation")
        return together(job, sums, torch.cat([value.flatten() for value in sums.values()]).tolist(), total)
