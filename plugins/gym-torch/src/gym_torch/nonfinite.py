"""Finds out where a loss or gradient that is not a number comes from: a run ends with a name, not with noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from gym_core import GymError
from gym_torch.objective import Objective
from gym_torch.source import Step

Gathered = Callable[[Sequence[str]], list[str]]


def explain(policy: nn.Module, objective: Objective, step: Step, number: int, gathered: Gathered = list) -> GymError:
    """Return the error that names the first parameter hit and the samples that do it alone.

    Runs every sample of the step once more by itself; the gradients of `policy` are lost. `gathered` joins the lists
    of all processes, which take turns together, for a forward pass of a model in shards needs them all.
    """
    fix = "lower `train.learning_rate`, set `train.precision: fp32`, or look at these samples: gym data preview"
    where = _first(gathered([name for name, weight in policy.named_parameters() if not _finite(weight)][:1]))
    if where:
        return GymError(
            f"the weights {where} hold values that are not finite",
            where=f"step {number}",
            fix="start from sound weights",
        )
    bad = [name for name, held in policy.named_parameters() if held.grad is not None and not _finite(held.grad)]
    hit = _first(gathered(bad[:1]))
    device = next(policy.parameters()).device
    examples = [example for batch in step.batches for example in batch]
    guilty = []
    for turn in range(max(int(count) for count in gathered([str(len(examples))]))):
        example = examples[turn % len(examples)]
        policy.zero_grad()
        loss, _ = objective.loss(policy, objective.collate([example]).to(device))
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = (weight.grad for weight in policy.parameters() if weight.grad is not None)
        if not (_finite(loss) and all(map(_finite, gradients))):
            guilty.append(example.id)
    guilty = sorted(set(gathered(guilty)))
    names = guilty or sorted(set(gathered([example.id for example in examples])))
    what = f"the gradient of {hit} is not finite" if hit else "the loss is not finite"
    samples = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return GymError(
        f"{what}; {'samples' if guilty else 'no sample alone does it, the samples are'}: {samples}",
        where=f"step {number}",
        fix=fix,
    )


def _first(names: Sequence[str]) -> str | None:
    return names[0] if names else None


def _finite(tensor: Tensor) -> bool:
    """Whether a tensor, or this process's part of it, is."""
    return bool((tensor.to_local() if isinstance(tensor, DTensor) else tensor).isfinite().all())
