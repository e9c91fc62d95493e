"""Writes and restores the state of a training job in a checkpoint, bit for bit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from gym_core import Artifact, GymError, RecipeError
from gym_optim.promises import named, promised
from gym_torch.contract_checks import plain_data
from gym_torch.distributed import optimizer_state
from gym_torch.loop.job import Job
from gym_torch.model.adapted import AdaptedModel
from gym_torch.observer import Progress
from gym_torch.policy import Policy
from gym_torch.source import Source

STATE = "state.json"
OPTIMIZER = "optimizer.safetensors"
SOURCE = "source.safetensors"
FIX = "make it what it was, or start over in another `output`"


def write(
    path: Path,
    job: Job,
    adapted: AdaptedModel,
    policy: Policy[Any],
    base: str,
    conditions: Mapping[str, Any],
    optimizer: optimizer_state.State,
) -> Artifact:
    """Write model, optimizer and state into an empty directory; return what the model is.

    Of a model in shards, the parameters are whole (`Replicated.whole`) and `optimizer` was taken before.

    `conditions` is what must be the same when the run goes on, by the name a user would call it.
    """
    made = save(path, adapted, policy, base, exact=True)
    tensors, plain = optimizer
    save_file(tensors, path / OPTIMIZER)
    if drawn := job.source.tensors():
        save_file(drawn, path / SOURCE)
    state = job_state(job, plain, conditions) | {"shapes": _shapes(policy)}
    (path / STATE).write_text(json.dumps(state), encoding="utf-8")
    return made


def job_state(job: Job, optimizer: Any, conditions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a job as JSON data; `optimizer` is the part of the optimizer state without tensors.

    Raises PluginError where the state of the source is not plain data.
    """
    return {
        "progress": asdict(job.progress),
        "window": job.window.state_dict(),
        "loss_scale": job.loss_scale and job.loss_scale.state_dict(),
        "spikes": job.spikes and job.spikes.state_dict(),
        "source": plain_data(job.source.state_dict(), f"{named(job.source)}.state_dict", "algorithm"),
        "observers": job.observer.state_dict(),
        "optimizer": optimizer,
        "conditions": conditions,
    }


def put_job(job: Job, state: Mapping[str, Any]) -> None:
    """Restore progress, observers, log window, scale and spikes of the loss of a job from what `job_state` returned."""
    job.observer.load_state_dict(state["observers"])
    job.window.load_state_dict(state["window"])
    if job.loss_scale:
        job.loss_scale.load_state_dict(state["loss_scale"])
    if job.spikes:
        job.spikes.load_state_dict(state["spikes"])
    job.progress = Progress(**state["progress"])
    job.saved = job.progress.reached


def save(path: Path, adapted: AdaptedModel, policy: Policy[Any], base: str, exact: bool = False) -> Artifact:
    """Write the weights of the model, and beside them those of what is trained beside it; return what that makes."""
    made = promised(adapted.save(path, base, exact), Artifact, f"{named(adapted)}.save", "adapter")
    for module in policy.auxiliary_modules:
        module.save(path, exact)
    return made


def load(path: Path, adapted: AdaptedModel, policy: Policy[Any]) -> None:
    """Put back the weights, before they are laid out over processes. Raises GymError where others are trained now."""
    old, new = json.loads((path / STATE).read_text(encoding="utf-8"))["shapes"], _shapes(policy)
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            was, now = old.get(name, "absent"), new.get(name, "absent")
            raise GymError(f"the trained parameters differ: {name} was {was}, is {now}", where=str(path), fix=FIX)
    put_weights(path, adapted, policy)


def put_weights(path: Path, adapted: AdaptedModel, policy: Policy[Any]) -> None:
    """Put back the weights of a checkpoint of this very run."""
    adapted.load(adapted.read(path))
    for module in policy.auxiliary_modules:
        module.restore(path)


def put_optimizer(path: Path, job: Job, policy: Policy[Any]) -> None:
    """Put back the state of the optimizer."""
    state = json.loads((path / STATE).read_text(encoding="utf-8"))
    optimizer_state.put(job.optimizer, policy, load_file(path / OPTIMIZER), state["optimizer"], job.spread.like)


def step_of(path: Path) -> int:
    """Return how many steps were taken when a checkpoint was written."""
    step: int = json.loads((path / STATE).read_text(encoding="utf-8"))["progress"]["step"]
    return step


def extend(path: Path, source: Source) -> None:
    """Have a source plan on from a checkpoint, whose run may have had fewer steps."""
    state = json.loads((path / STATE).read_text(encoding="utf-8"))
    source.extend(state["source"], step_of(path))


def restore(path: Path, job: Job, policy: Policy[Any], conditions: Mapping[str, Any]) -> int:
    """Put a job whose weights are back where it was when the checkpoint was written; return the steps the run then had.

    Where it has more now, what ended it early ends it no longer.

    Raises GymError where data or conditions are others, naming the difference.
    """
    state = json.loads((path / STATE).read_text(encoding="utf-8"))
    for name, value in conditions.items():
        if state["conditions"].get(name) != value:
            before = state["conditions"].get(name)
            raise GymError(
                f"{name} was {before} when the checkpoint was written, and is {value}",
                where=str(path),
                fix=FIX,
            )
    job.source.load_state_dict(state["source"], load_file(path / SOURCE) if (path / SOURCE).exists() else {})
    put_optimizer(path, job, policy)
    put_job(job, state)
    before = job.progress.total
    if job.source.total > before:
        job.progress.total, job.progress.stop = job.source.total, ""
    return before


def check_skips(steps: Sequence[int], progress: Progress) -> None:
    """Raise RecipeError where a step to skip was taken already, or never comes."""
    for number in steps:
        taken = number <= progress.step and number not in progress.skipped
        if taken or number > progress.total:
            past = f"step {number} is part of the checkpoint of step {progress.step}"
            raise RecipeError(
                past if taken else f"there is no step {number}, the run has {progress.total}",
                key="train.skip_steps",
                fix="take it out of the list" + (", or start over in another `output`" if taken else ""),
            )


def _shapes(policy: Policy[Any]) -> dict[str, list[int]]:
    return {name: list(weight.shape) for name, weight in policy.named_parameters() if weight.requires_grad}
