"""The space of a study: by key of the recipe, a range or a list of choices."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import Trial
from pydantic import model_validator

from gym_core import Config, sections
from gym_core.sections import Findings, Path


class Range(Config):
    """Numbers from `low` to `high`, both included."""

    low: int | float
    """Smallest value."""
    high: int | float
    """Largest value."""
    step: int | float | None = None
    """Distance between two values; without it whole numbers have 1, and others none."""
    log: bool = False
    """Whether values are spread evenly over orders of magnitude."""

    @model_validator(mode="after")
    def _fits_together(self) -> Range:
        if any(isinstance(value, bool) for value in (self.low, self.high, self.step)):
            raise ValueError("low, high and step are numbers")
        if self.low >= self.high:
            raise ValueError(f"low {self.low} is not below high {self.high}; one value belongs into the recipe")
        if self.log and self.low <= 0:
            raise ValueError(f"with log, low is above 0 (got {self.low})")
        if self.log and self.step is not None:
            raise ValueError("set log or step, not both")
        if self.step is not None and not 0 < self.step <= self.high - self.low:
            raise ValueError(f"step is above 0 and at most high - low (got {self.step})")
        return self


@dataclass(frozen=True)
class Axis:
    """One key of the space."""

    key: str  #: dotted, as overrides name it
    path: Path  #: where it stands in the study file
    range: Range | None = None
    choices: tuple[Any, ...] = ()  #: where it is no range: values of the recipe, components and lists among them

    around: Mapping[str, Any] = field(default_factory=dict)  #: for an option, a choice of the component that has it

    def as_real(self) -> Axis:
        """Return it as a range of real numbers, however they were written: `{low: 0, high: 1}` of an option with fractions."""
        assert self.range is not None
        return replace(self, range=self.range.model_copy(update={"low": float(self.range.low)}))

    def distribution(self) -> BaseDistribution:
        """Return what Optuna calls it. The last step ends at or below `high`."""
        given = self.range
        if given is None:
            return CategoricalDistribution([label(choice) for choice in self.choices])
        if all(isinstance(value, int) for value in (given.low, given.high, given.step or 1)):
            step = int(given.step or 1)
            high = given.low + (given.high - given.low) // step * step
            return IntDistribution(int(given.low), int(high), log=given.log, step=step)
        if given.step is None:
            return FloatDistribution(float(given.low), float(given.high), log=given.log)
        first, last, every = (Decimal(str(value)) for value in (given.low, given.high, given.step))
        return FloatDistribution(float(first), float(first + (last - first) // every * every), step=float(every))

    @property
    def endless(self) -> bool:
        """Whether there are points between any two of its points."""
        return isinstance(of := self.distribution(), FloatDistribution) and of.step is None

    def suggest(self, trial: Trial) -> None:
        """Have the sampler choose its value in a trial; one that is chosen already stays."""
        of: Any = self.distribution()
        if self.range is None:
            trial.suggest_categorical(self.key, of.choices)
        elif isinstance(of, IntDistribution):
            trial.suggest_int(self.key, of.low, of.high, step=of.step, log=of.log)
        else:
            trial.suggest_float(self.key, of.low, of.high, step=of.step, log=of.log)

    def corners(self) -> tuple[Any, ...]:
        """Return the values that are tried before a trial begins: both ends of a range, or every choice."""
        of: Any = self.distribution()
        return (of.low, of.high) if self.range else self.choices

    def contains(self, value: Any) -> bool:
        """Whether a value of the recipe is a point of it."""
        if self.range is None:
            return any(_same(value, choice) for choice in self.choices)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        of: Any = self.distribution()
        whole = isinstance(of, FloatDistribution) or value == int(value)
        steps = (value - of.low) / of.step if of.step else 0.0
        return bool(of.low <= value <= of.high and whole and abs(steps - round(steps)) < 1e-8)

    def value(self, parameter: Any) -> Any:
        """Return what the recipe is given for a parameter of Optuna."""
        return next((choice for choice in self.choices if label(choice) == parameter), parameter)


def label(choice: Any) -> Any:
    """Return a choice as Optuna stores it: a scalar as it is, a mapping or a list as text."""
    return json.dumps(choice) if isinstance(choice, dict | list) else choice


def read_space(raw: Mapping[str, Any], found: Findings) -> list[Axis]:
    """Return the axes of a space, in order; problems are added to `found`. Keys may be dotted, or mappings in each other."""
    axes: dict[str, Axis] = {}
    for path, key, value in _leaves(raw, ("space",), ""):
        axis = _axis(path, key, value, found)
        if axis and key in axes:
            found.add(path, f"`{key}` is given twice", "keep one of them")
        elif axis:
            axes[key] = axis
    if not raw:
        found.add(
            ("space",),
            "is empty",
            "name a key of the recipe: `train.learning_rate: {low: 1e-6, high: 1e-3, log: true}`",
        )
    found_axes = sorted(axes.values(), key=lambda axis: axis.key.count("."))  # a component before its options
    return [replace(axis, around=_around(axis, found_axes)) for axis in found_axes]


def _around(axis: Axis, axes: Sequence[Axis]) -> dict[str, Any]:
    return {each.key: each.choices[0] for each in axes if each.choices and axis.key.startswith(f"{each.key}.")}


def _leaves(raw: Mapping[str, Any], path: Path, around: str) -> Iterator[tuple[Path, str, Any]]:
    for name, value in raw.items():
        key = f"{around}{name}"
        if isinstance(value, dict) and value and not value.keys() & Range.model_fields.keys():
            yield from _leaves(value, (*path, name), f"{key}.")
        else:
            yield (*path, name), key, value


def _axis(path: Path, key: str, value: Any, found: Findings) -> Axis | None:
    if key.partition(".")[0] in ("output", "export", "hooks", "quantization"):
        found.add(path, "is no hyperparameter of training", "set it in the recipe")
    elif isinstance(value, dict):
        made = sections.config(Range, value, path, found)
        return Axis(key, path, range=made) if isinstance(made, Range) else None
    elif not isinstance(value, list) or not value:
        found.add(
            path, "is neither a range nor a list of choices", f"write {key}: {{low: 1, high: 8}} or {key}: [1, 2, 4]"
        )
    elif again := [choice for at, choice in enumerate(value) if any(_same(choice, other) for other in value[:at])]:
        found.add(path, f"the choice {again[0]!r:.60} is given twice", "keep one of them")
    else:
        return Axis(key, path, choices=tuple(value))
    return None


def _same(left: Any, right: Any) -> bool:
    return bool(label(left) == label(right))
