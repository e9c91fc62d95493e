"""Finds out where a loss or gradient that is not a number comes from: a run ends with a name, not with noise."""

from __future__ import annotations

from torch import Tensor, nn

from gym_core import GymError
from gym_torch.objective import Objective
from gym_torch.source import Step


def explain(policy: nn.Module, objective: Objective, step: Step, number: int) -> GymError:
    """Return the error that names the first parameter hit and the samples that do it alone.

    Runs every sample of the step once more by itself; the gradients of `policy` are lost.
    """
    fix = "lower `train.learning_rate`, set `train.precision: fp32`, or look at these samples: gym data preview"
    where = next((name for name, weight in policy.named_parameters() if not _finite(weight)), None)
    if where:
        return GymError(
            f"the weights {where} hold values that are not finite",
            where=f"step {number}",
            fix="start from sound weights",
        )
    hit = next(
        (name for name, weight in policy.named_parameters() if weight.grad is not None and not _finite(weight.grad)),
        None,
    )
    device = next(policy.parameters()).device
    guilty = []
    for example in (example for batch in step.batches for example in batch):
        policy.zero_grad()
        loss, _ = objective.loss(policy, objective.collate([example]).to(device))
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = (weight.grad for weight in policy.parameters() if weight.grad is not None)
        if not (_finite(loss) and all(map(_finite, gradients))):
            guilty.append(example.id)
    everyone = [example.id for batch in step.batches for example in batch]
    names = guilty or everyone
    what = f"the gradient of {hit} is not finite" if hit else "the loss is not finite"
    samples = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return GymError(
        f"{what}; {'samples' if guilty else 'no sample alone does it, the samples are'}: {samples}",
        where=f"step {number}",
        fix=fix,
    )


def _finite(tensor: Tensor) -> bool:
    return bool(tensor.isfinite().all())
