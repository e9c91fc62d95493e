"""Finds out where a loss or gradient that is not a number comes from: a run ends with a name, not with noise."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from gym_core import GymError
from gym_torch.objective import Objective
from gym_torch.source import Step


def check_weights(policy: nn.Module, last: tuple[int, Step] | None, skipped: Sequence[int]) -> None:
    """Raise GymError that names the first weight that is not finite and the samples of `last`, the last update.

    `skipped` are the steps that the recipe leaves out already.
    """
    name = next((name for name, weight in policy.named_parameters() if not _finite(weight)), None)
    if name is None:
        return
    why = f"the weights {name} hold values that are not finite"
    if last is None:
        raise GymError(why, where="before the first step", fix="start from sound weights")
    number, step = last
    why += f", since the update with samples: {_listed(_names(step))}"
    raise GymError(why, where=f"step {number}", fix=_fix(number, skipped))


def explain(policy: nn.Module, objective: Objective, step: Step, number: int, skipped: Sequence[int]) -> GymError:
    """Return the error that names the first parameter hit and the samples that do it alone.

    Runs every sample of the step once more by itself; the gradients of `policy` are lost.
    """
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
    what = f"the gradient of {hit} is not finite" if hit else "the loss is not finite"
    whose = "samples" if guilty else "no sample alone does it, the samples are"
    return GymError(
        f"{what}; {whose}: {_listed(guilty or _names(step))}", where=f"step {number}", fix=_fix(number, skipped)
    )


def _fix(number: int, skipped: Sequence[int]) -> str:
    steps = ",".join(map(str, sorted({*skipped, number})))
    return (
        f"the same command with `train.skip_steps=[{steps}]` goes back to the last checkpoint and leaves this step out; "
        "or look at the samples (gym data preview), or lower `train.learning_rate` in another `output`"
    )


def _names(step: Step) -> list[str]:
    return [example.id for batch in step.batches for example in batch]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _finite(tensor: Tensor) -> bool:
    return bool(tensor.isfinite().all())
