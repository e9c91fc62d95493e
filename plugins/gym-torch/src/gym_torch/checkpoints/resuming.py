"""Resuming a run: what must be unchanged, and the learning rate when the run now has more steps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gym_core import Recipe, RecipeError, Run
from gym_data.location import artifact_at, locate
from gym_torch.checkpoints import training_state
from gym_torch.checkpoints.checkpoint_folders import Checkpoints
from gym_torch.config import TorchAlgorithm
from gym_torch.console import say, warn
from gym_torch.kinds import Adapter, part
from gym_torch.loop.job import Job, keeps_best
from gym_torch.loop.lr_schedule import schedule
from gym_torch.model import fingerprint
from gym_torch.model.loading import LoadedModel
from gym_torch.policy import Policy


def extended(recipe: Recipe, job: Job, before: int) -> str:
    """Return what becomes of the learning rate of a run of `before` steps that now has more.

    Raises RecipeError where what the adapter does in a step follows from how many there are.
    """
    taken, total = job.progress.scheduled, job.progress.total
    adapter = part(recipe, Adapter)
    if adapter and adapter.needs_total_steps:
        raise RecipeError(
            f"this adapter shares out its work over all steps, of which there were {before}",
            key="train.max_steps",
            fix="make it what it was, or start over in another `output`",
        )
    old, new = schedule(recipe, before), schedule(recipe, total)
    said = f"{before:,} steps become {total:,}"
    if all(old(step) == new(step) for step in range(taken)):
        return f"{said}; the learning rate goes on as it would have in a run of that length"
    return (
        f"{said}; the learning rate was that of the shorter run up to step {taken:,} ({old(max(0, taken - 1)):.3g} of its peak), "
        f"and is that of the longer one from there on ({new(taken):.3g}): with `scheduler: constant` there is no such break"
    )


def conditions_of(run: Run, model: LoadedModel, config: TorchAlgorithm) -> dict[str, str]:
    """Return what must be the same when a run goes on: the models that it begins with and looks at, and the precision."""
    named = {"the base model": model.path}
    named |= {
        f"the model {other.path}": locate(other.path, key=other.key)
        for other in config.further()
        if other.path and other.stays
    }
    adapter = part(run.recipe, Adapter)
    named |= {f"the adapter {name}": artifact_at(name).path for name in adapter.begins_with()} if adapter else {}
    prints = run.ranks.agree(lambda: {name: fingerprint.of_model(path) for name, path in named.items()})
    return prints | {"the precision": model.precision}


def go_on(
    found: Path, job: Job, policy: Policy[Any], conditions: Mapping[str, Any], run: Run, checkpoints: Checkpoints
) -> None:
    """Put a job where a checkpoint left it, and say so. Raises what `training_state.restore` and `extended` raise."""
    before = training_state.restore(found, job, policy, conditions)
    say(f"continuing from {found.name}")
    best = job.progress.best_step
    if keeps_best(job.train) and best != -1 and not job.ranks.agree(lambda: checkpoints.holds(best)):
        warn(
            f"there is no whole checkpoint of step {best}, the best so far: the best is that of the evaluations to come"
        )
        job.progress.best_step, job.progress.best, job.progress.best_figures = -1, None, {}
    if job.progress.total > before:
        say(extended(run.recipe, job, before))
        run.record.update(extended={str(before): job.progress.total})  # it may not be what a run of this length is
