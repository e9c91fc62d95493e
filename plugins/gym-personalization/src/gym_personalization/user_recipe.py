"""The recipe of one user as plain data: what the trainer says, with the rows of that user."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gym_core import Component, Quantizer, RecipeError
from gym_core.discovery import entries
from gym_core.loading import load
from gym_core.record import RunRecord
from gym_core.sections import nested_slots

#: What the recipes of users say where nobody says otherwise: a few rows, seen a few times.
DEFAULTS: dict[str, Any] = {
    "adapter": "lora",
    "train": {"epochs": 3, "batch_size": 4, "learning_rate": 2e-4, "save_every": 50},
}
KEPT = (
    "adapter",
    "optimizer",
    "scheduler",
    "train",
)  #: sections that an update takes over, where nobody says otherwise


def recipe_of(
    said: Mapping[str, Any], path: Path, pairs: bool, train: Mapping[str, Any], output: Path, run: Path | None = None
) -> dict[str, Any]:
    """Return the recipe of one user, with the rows in a file in the place of `data.sources`.

    Args:
        said: sections that the trainer was given.
        path: the rows.
        pairs: whether they are pairs of answers.
        train: keys of `train` for this user alone.
        output: directory of the run.
        run: that of the version that it goes on from: how that one was trained counts where `said` is silent.

    """
    before = {} if run is None else RunRecord(run / "run.json").read().get("recipe", {})
    raw = {**DEFAULTS, **{key: before[key] for key in KEPT if key in before}, **said}
    data = raw.get("data") or {}
    if not isinstance(data, Mapping):
        raise RecipeError("each user has a source of its own", key="data", fix="leave `sources` out")
    raw["data"] = {"processes": 1, **data, "sources": [str(path)]}
    raw.setdefault("algorithm", "dpo" if pairs else "sft")
    raw["train"] = {**(raw["train"] or {}), **train}
    return {**raw, "output": str(output)}


def named(section: Any) -> dict[str, Any]:
    """Return a section of a recipe as a mapping."""
    return dict(section) if isinstance(section, Mapping) else {"name": section}


def section_of(config: Quantizer | Mapping[str, Any] | str) -> Any:
    """Return a quantizer as a recipe says it."""
    return _said(config) if isinstance(config, Quantizer) else config


def _said(component: Component) -> dict[str, Any]:
    """Return a component as a recipe says it, with those that its options name."""
    names = [entry.qualified for entry in entries(component.kind) if load(entry) is type(component)]
    if not names:
        why = f"{type(component).__name__} is none of the {component.kind} that are installed"
        raise RecipeError(why, key="quantization")
    options = component.model_dump(exclude_unset=True)
    for name in nested_slots(type(component)).keys() & options.keys():
        value = getattr(component, name)
        options[name] = [_said(each) for each in value] if isinstance(value, list) else value and _said(value)
    return {"name": names[0], **options}
