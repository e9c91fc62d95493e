"""The kind `planners`, and the planner that a run asks: what a recipe leaves to the machine is settled before the first step.

The engine brings none. What was settled, and by which planner, stands in `run.json`; a resumed run reads it there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from pydantic import ValidationError

from gym_core import Component, PluginError, Recipe, Run, Train
from gym_core.discovery import Entry, entries, installed
from gym_core.files import expanded
from gym_core.loading import load_component
from gym_core.record import RunRecord
from gym_optim.promises import promised
from gym_torch.console import say, warn

if TYPE_CHECKING:
    import torch

    from gym_torch.source import Examples

AUTO = "auto"
KEYS = ("batch_tokens", "gradient_checkpointing")  #: of the section `train`: those that a planner settles
RECORD = "planner"  #: key of `run.json`
BRIEF = 10.0  #: seconds of training, below which predicting its memory would take about as long


@dataclass(frozen=True)
class PlannedRun:
    """A run as a planner sees it: everything but the weights."""

    recipe: Recipe  #: with `auto` where something is to be settled
    path: Path  #: directory with the configuration of the model
    precision: str  #: what it computes in: `fp32`, `bf16` or `fp16`
    device: torch.device
    examples: Examples  #: what the data section prepared for training


@runtime_checkable
class Plans(Protocol):
    """What a planner builds."""

    def settle(self, run: PlannedRun) -> Mapping[str, Any]:
        """Return a value for each key of `train` that is `auto`. Raises GymError where none fits."""
        ...

    def predicted_bytes(self, run: PlannedRun) -> int:
        """Return the most memory that a step of the run takes, in bytes, where nothing is `auto`."""
        ...


class Planner(Component):
    """Settles what a recipe leaves to the machine: `train.batch_tokens: auto`, `train.gradient_checkpointing: auto`.

    `build()` returns a `gym_torch.planners.Plans`. What it settles follows from the run and the machine alone: it draws no
    random number, and a second call returns the same. A recipe names no planner: `auto` asks the one that is installed.
    """

    kind: ClassVar[str] = "planners"


def left_open(train: Train) -> tuple[str, ...]:
    """Return the keys that a planner must settle."""
    return tuple(key for key in KEYS if getattr(train, key) == AUTO)


def chosen(key: str = "") -> tuple[Mapping[str, str], Planner]:
    """Return the only planner installed, with what `run.json` says of it. Raises PluginError where there is none, or several."""
    found = entries(Planner.kind)
    if len(found) != 1:
        why, fix = _why(found)
        raise PluginError(why, key=key, fix=fix)
    entry, cls = load_component(Planner.kind, found[0].qualified, key)
    planner = cls()
    assert isinstance(planner, Planner)
    return {"name": entry.name, "dist": entry.dist, "version": entry.version}, planner


def _why(found: Sequence[Entry]) -> tuple[str, str]:
    """Return why no planner can be asked, and what to do."""
    off = [entry for entry in installed().disabled if entry.kind == Planner.kind]
    names = ", ".join(f"{entry.name} of {entry.dist} {entry.version}" for entry in found or off)
    if found:
        return (
            f"`auto` asks a planner, and these are installed: {names}",
            f"keep one: gym plugins disable {found[-1].dist}",
        )
    if off:
        return f"`auto` asks a planner, and {names} is disabled", f"gym plugins enable {off[0].dist}, or set a value"
    return "`auto` asks a planner, and none is installed", "pip install gym-plan, or set a value"


def check(recipe: Recipe) -> None:
    """Raise PluginError where something is left open and nobody can settle it, nor has settled it for this run before."""
    asked = left_open(recipe.train)
    if asked and _recorded(RunRecord(expanded(recipe.output) / "run.json"), asked) is None:
        chosen(f"train.{asked[0]}")


def settle(run: Run, planned: PlannedRun) -> Train:
    """Return the training options with what was settled in place of `auto`: found once, in one process, and recorded.

    Raises what `chosen` and the planner raise, and PluginError for an answer that is none.
    """
    train = planned.recipe.train
    asked = left_open(train)
    if not asked:
        return train

    def found() -> dict[str, Any]:
        known = _recorded(run.record, asked)
        if known is not None:
            return known
        said, planner = chosen(f"train.{asked[0]}")
        plans = promised(planner.build(), Plans, planner, f"train.{asked[0]}")  # type: ignore[type-abstract]
        return {**said, "settled": dict(plans.settle(planned))}

    record = run.ranks.agree(found)
    settled = _answers(record, asked)
    run.record.update(**{RECORD: record})
    say(f"{', '.join(f'{key}: {value}' for key, value in settled.items())} ({record['dist']} {record['version']})")
    return train.model_copy(update=settled)


def predicted_bytes(planned: PlannedRun, train: Train, seconds: float) -> int | None:
    """Return the peak that the only planner installed predicts for a run of so many seconds, under settled options.

    None where there is no such planner, where it cannot say, or where it would take as long as the run.
    """
    if len(entries(Planner.kind)) != 1 or seconds < BRIEF:
        return None
    try:
        plans: Plans = chosen()[1].build()
        return plans.predicted_bytes(replace(planned, recipe=replace(planned.recipe, train=train)))
    except Exception as error:  # code of plugins, which may not work without data
        warn(f"the memory of this run cannot be predicted: {error}")
        return None


def _recorded(record: RunRecord, asked: tuple[str, ...]) -> dict[str, Any] | None:
    """Return what an earlier process of this run recorded, where it is about these keys."""
    found: dict[str, Any] = record.read().get(RECORD, {})
    return found if set(found.get("settled", ())) == set(asked) else None


def _answers(record: Mapping[str, Any], asked: tuple[str, ...]) -> dict[str, Any]:
    """Return what was settled. Raises PluginError where that is not a value for each key, or one that `train` does not take."""
    settled: dict[str, Any] = record["settled"]
    where = f"{record['dist']} {record['version']} (gym.{Planner.kind}: {record['name']})"
    if set(settled) != set(asked):
        raise PluginError(f"settles {sorted(settled)}, and was asked for {sorted(asked)}", where=where)
    try:
        if left_open(Train(**settled)):
            raise PluginError(f"leaves {', '.join(left_open(Train(**settled)))} open", where=where)
    except ValidationError as error:
        raise PluginError(f"settles what `train` does not take: {error.errors()[0]['msg']}", where=where) from error
    return settled
