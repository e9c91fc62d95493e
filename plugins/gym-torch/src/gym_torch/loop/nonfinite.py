"""Finds out where a loss or gradient that is not a number comes from: a run ends with a name, not with noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from gym_core import GymError
from gym_torch.objective import Objective
from gym_torch.source import Step

Gathered = Callable[[Sequence[str]], list[str]]


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


def explain(
    policy: nn.Module,
    objective: Objective[Any, Any],
    step: Step,
    number: int,
    skipped: Sequence[int],
    gathered: Gathered = list,
    fp16: bool = False,
) -> GymError:
    """Return the error that names the first parameter hit and the samples that do it alone.

    Runs every sample of the step once more by itself; the gradients of `policy` are lost. `gathered` joins the lists
    of all processes, which take turns together, for a forward pass of a model in shards needs them all. The gradients of shards
    are those of the samples of a turn together, and tell which of them does it only where no loss does. `fp16` is whether the run
    computes in it.
    """
    bad = [name for name, held in policy.named_parameters() if held.grad is not None and not _finite(held.grad)]
    hit = _first(gathered(bad[:1]))
    device = next(policy.parameters()).device
    examples = [example for batch in step.batches for example in batch]
    guilty = []
    in_shards = any(isinstance(weight, DTensor) for weight in policy.parameters())
    for turn in range(max(int(count) for count in gathered([str(len(examples))]))):
        example = examples[turn % len(examples)]
        policy.zero_grad()
        loss, _ = objective.loss(policy, objective.collate([example]).to(device))
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = (weight.grad for weight in policy.parameters() if weight.grad is not None)
        sound = _finite(loss)
        known = gathered([] if sound else [example.id]) if in_shards else []
        if not sound or (not known and not all(map(_finite, gradients))):
            guilty.append(example.id)
    guilty = sorted(set(gathered(guilty)))
    names = guilty or sorted(set(gathered(_names(step))))
    what = f"the gradient of {hit} is not finite" if hit else "the loss is not finite"
    what += ", in fp16, which ends at 65504: bf16 and fp32 do not" if fp16 else ""
    whose = "samples" if guilty else "no sample alone does it, the samples are"
    return GymError(f"{what}; {whose}: {_listed(names)}", where=f"step {number}", fix=_fix(number, skipped))


def _first(names: Sequence[str]) -> str | None:
    return names[0] if names else None


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
    """Whether a tensor, or this process's part of it, is."""
    return bool((tensor.to_local() if isinstance(tensor, DTensor) else tensor).isfinite().all())
