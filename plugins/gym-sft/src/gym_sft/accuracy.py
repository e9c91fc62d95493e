"""How many tokens of held-out answers a model would have written, greedily, after the right ones before them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from gym_sft import LearnsAnswers
from gym_torch.contribution import Contribution, Parts, held_out_loss, samples
from gym_torch.distributed.collectives import over_processes
from gym_torch.loop.evaluation import HeldOutLoss
from gym_torch.loop.job import Evaluation, Job
from gym_torch.loop.step_batches import place
from gym_torch.model.log_probs import map_logits
from gym_torch.policy import Policy
from gym_torch.rounding import rounding


def supervised(parts: Parts[LearnsAnswers, Any, Any]) -> Contribution:
    """Return the prepared samples, and the loss on those held out, with the accuracy where it is asked for."""
    return Contribution(parts.objective, samples(parts), evaluation(parts))


def evaluation(parts: Parts[Any, Any, Any]) -> Evaluation | None:
    """Return what measures the policy on the samples that are held out; None where none are."""
    loss = held_out_loss(parts)
    return WithAccuracy(loss) if loss and parts.config.compute_accuracy else loss


class WithAccuracy:
    """Measures the accuracy of each answer beside the loss, and of each part that is measured by itself."""

    def __init__(self, measured: HeldOutLoss) -> None:
        """Take what measures the loss."""
        self.measured = measured

    @torch.no_grad()
    def __call__(self, job: Job) -> Mapping[str, float] | None:
        """Return what that measures, and the mean accuracies of the answers; None where a signal came."""
        found = self.measured(job)
        if found is None:
            return None
        job.policy.eval()
        policy: Policy[Any] = job.accelerator.unwrap_model(job.policy)
        counted: list[float] = []  # of each part the sum and the number
        for step in self.measured.steps:
            total = answers = 0.0
            for number, examples in enumerate(step.batches, start=1):
                job.ranks.at(place(job.progress.step, examples, "accuracy after step"))
                of_each = accuracies(policy, job.objective.collate(examples).to(job.accelerator.device))
                if number <= len(step.batches) - step.spare:  # the others keep step with other processes
                    total, answers = total + float(of_each.sum()), answers + len(of_each)
            counted += [total, answers]
        job.policy.train()
        counted = over_processes(job.accelerator, counted)
        totals, numbers = counted[::2], counted[1::2]
        apart = {f"{name}_accuracy": totals[at] / numbers[at] for at, name in enumerate(self.measured.names)}
        return {**found, **apart, "accuracy": sum(totals) / sum(numbers)}


def accuracies(policy: Policy[Any], batch: Any) -> torch.Tensor:
    """Return the share of tokens of each answer that are the most probable ones, `[answers with a token to predict]`."""

    def most_probable(logits: torch.Tensor, rows: slice) -> torch.Tensor:
        return logits.argmax(1)

    with rounding(batch.tokens.device, policy.precision):
        guessed = map_logits(policy.hidden(batch), policy.head, most_probable, policy.chunk)
    right = (guessed == batch.targets).double()
    counts = torch.bincount(batch.target_segment, minlength=len(batch.segments))
    sums = torch.bincount(batch.target_segment, right, minlength=len(batch.segments))
    return sums[counts > 0] / counts[counts > 0]
