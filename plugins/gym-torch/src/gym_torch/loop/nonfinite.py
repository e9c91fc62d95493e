"""Finds out where a loss or gradient comes from that is no number, or a spike: a run ends with a name, not with noise."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from gym_core import GymError
from gym_torch.loop.loss_spikes import Spike
from gym_torch.objective import Objective
from gym_torch.source import Step

Gathered = Callable[[Sequence[str]], list[str]]
PREVIEW = 200  #: tokens of a sample that a report shows


class Diverged(GymError):
    """A run went wrong by itself. `report` says of the step what was found, as plain data; see `divergence_report`."""

    def __init__(self, why: str, number: int, skipped: Sequence[int], report: Mapping[str, Any], fix: str = "") -> None:
        """Say why step `number` cannot be taken, or ruined the weights; `skipped` are the steps that the recipe leaves out."""
        where = f"step {number}" if number else "before the first step"
        super().__init__(why, where=where, fix=fix or _fix(number, skipped))
        self.report = {"step": number, "why": why, **report}


def check_weights(policy: nn.Module, last: tuple[int, Step] | None, skipped: Sequence[int]) -> None:
    """Raise Diverged that names the first weight that is not finite and the samples of `last`, the last update.

    `skipped` are the steps that the recipe leaves out already.
    """
    name = next((name for name, weight in policy.named_parameters() if not _finite(weight)), None)
    if name is None:
        return
    why = f"the weights {name} hold values that are not finite"
    if last is None:
        raise Diverged(why, 0, skipped, {"weights": weights_of(policy)}, fix="start from sound weights")
    number, step = last
    why += f", since the update with samples: {_listed(_names(step))}"
    samples = [{"sample": name} for name in _names(step)]
    raise Diverged(why, number, skipped, {"samples": samples, "weights": weights_of(policy)})


def explain(
    policy: nn.Module,
    objective: Objective[Any, Any],
    step: Step,
    number: int,
    skipped: Sequence[int],
    gathered: Gathered = list,
    fp16: bool = False,
    spike: Spike | None = None,
) -> Diverged:
    """Return the error that names the first parameter hit and the samples that do it alone; of a `spike`, the largest losses.

    Runs every sample of the step once more by itself; the gradients of `policy` are lost. `gathered` joins the lists
    of all processes, which take turns together, for a forward pass of a model in shards needs them all. The gradients of shards
    are those of the samples of a turn together, and tell which of them does it only where no loss does. `fp16` is whether the run
    computes in it.
    """
    bad = [name for name, held in policy.named_parameters() if held.grad is not None and not _finite(held.grad)]
    hit = _first(gathered(bad[:1]))
    weights = weights_of(policy)
    found = _alone(policy, objective, [example for batch in step.batches for example in batch], gathered)
    guilty = sorted(each["sample"] for each in found if not each["finite"])
    report: dict[str, Any] = {"samples": sorted(found, key=_worst), "parameters_not_finite": bad, "weights": weights}
    if spike:
        report |= {"spike": spike._asdict()}
    if spike and math.isfinite(spike.loss) and math.isfinite(spike.grad_norm):
        first = [each["sample"] for each in report["samples"]]
        return Diverged(f"{spike}; samples, the largest loss first: {_listed(first, 3)}", number, skipped, report)
    names = guilty or sorted(set(gathered(_names(step))))
    what = f"the gradient of {hit} is not finite" if hit else "the loss is not finite"
    what += ", in fp16, which ends at 65504: bf16 and fp32 do not" if fp16 else ""
    whose = "samples" if guilty else "no sample alone does it, the samples are"
    return Diverged(f"{what}; {whose}: {_listed(names)}", number, skipped, report)


def _alone(
    policy: nn.Module, objective: Objective[Any, Any], examples: Sequence[Any], gathered: Gathered
) -> list[dict[str, Any]]:
    """Return of each sample of all processes its loss and the norm of its gradient, by itself, and whether both are finite."""
    device = next(policy.parameters()).device
    in_shards = any(isinstance(weight, DTensor) for weight in policy.parameters())
    told: list[str] = []
    for turn in range(max(int(count) for count in gathered([str(len(examples))]))):
        example = examples[turn % len(examples)]
        policy.zero_grad()
        batch = objective.collate([example])
        loss, _ = objective.loss(policy, batch.to(device))
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = [weight.grad for weight in policy.parameters() if weight.grad is not None]
        sound = _finite(loss)
        known = gathered([] if sound else [example.id]) if in_shards else []
        finite = sound and (bool(known) or all(map(_finite, gradients)))
        weight = objective.weight(batch)
        told.append(
            json.dumps(
                {
                    "sample": example.id,
                    "loss": float(loss.detach()) / weight if weight else None,
                    "grad_norm": None
                    if in_shards
                    else math.hypot(*(float(each.norm()) for each in gradients)) / (weight or 1),
                    "finite": finite,
                    "tokens": batch.tokens.flatten()[:PREVIEW].tolist(),
                }
            )
        )
    every = [json.loads(each) for each in gathered(told)]
    return list({each["sample"]: each for each in every}.values())


def weights_of(policy: nn.Module, most: int = 10) -> dict[str, Any]:
    """Return how many numbers of trained weights are not finite, and the parameters with the largest; of shards, those here."""
    found = []
    for name, weight in policy.named_parameters():
        held = (weight.to_local() if isinstance(weight, DTensor) else weight).detach()
        if weight.requires_grad and held.numel():
            numbers = held.float()
            lost = int((~numbers.isfinite()).sum())
            size = numbers.nan_to_num(nan=math.inf, neginf=math.inf, posinf=math.inf).abs()
            told = {"largest": float(size.max()), "rms": float(numbers.square().mean().sqrt()), "not_finite": lost}
            found.append({"name": name, **told})
    found.sort(key=lambda told: (-told["not_finite"], -told["largest"]))
    return {"not_finite": sum(told["not_finite"] for told in found), "parameters": found[:most]}


def _worst(told: Mapping[str, Any]) -> tuple[bool, float, str]:
    """Return what samples are sorted by: those that are not finite first, then the largest loss."""
    loss = told["loss"]
    return bool(told["finite"]), -loss if loss is not None and math.isfinite(loss) else -math.inf, told["sample"]


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


def _listed(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _finite(tensor: Tensor) -> bool:
    """Whether a tensor, or this process's part of it, is."""
    return bool((tensor.to_local() if isinstance(tensor, DTensor) else tensor).isfinite().all())
