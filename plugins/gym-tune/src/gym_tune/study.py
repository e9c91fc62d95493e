"""The study file: its options, and how it is read with overrides of the command line."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, SerializeAsAny

from gym_core import Config, RecipeError, Slot, sections
from gym_core.dialect import COMMAND, apply_override
from gym_core.sections import Findings
from gym_core.yamlfile import parse_scalar, read_yaml
from gym_tune.kinds import Pruner, Sampler
from gym_tune.pruners import Median
from gym_tune.samplers import TPE


class Study(Config):
    """What is searched, by which measure, and for how long."""

    changeable: ClassVar[frozenset[str]] = frozenset(["n_trials", "timeout", "repeats", "output"])

    recipe: Annotated[str, Field(examples=["recipe.yaml"])]
    """File of the recipe, in any dialect; a path is looked up in the folder of the study file, then in this one."""
    space: dict[str, Any]
    """By key of the recipe, a list of choices or a range: `{low: 1e-6, high: 1e-3, log: true}`, with `step` if you like."""
    metric: str | None = None
    """Key of `metrics.jsonl`; by default what the algorithm improves, on rows held out (`eval_loss`)."""
    direction: Literal["minimize", "maximize"] | None = None
    """Which way the metric is better; by default as the algorithm says of it."""
    average_over: PositiveInt = 1
    """Newest values of the metric of which the mean is taken; more than one for noisy ones, such as rewards of training."""
    n_trials: PositiveInt = 20
    """Trials of the study, those of earlier commands included."""
    timeout: Annotated[float, Field(gt=0)] | None = None
    """Seconds after which this command begins no further trial; the one under way is finished."""
    sampler: Annotated[SerializeAsAny[Sampler], Slot("samplers", default="tpe")] = TPE()
    """What chooses the values of trials: `tpe`, `random`, `grid`, `qmc`, `gp`, or one of another package."""
    pruner: Annotated[SerializeAsAny[Pruner], Slot("pruners", default="median")] = Median()
    """What ends trials early: `median`, `percentile`, `asha`, `hyperband`, `none`, or one of another package."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of the sampler. That of training is the recipe's, and the same in every trial."""
    starting_points: tuple[dict[str, Any], ...] = ()
    """Values by key that are tried first, after the recipe's own; keys that are left out are drawn."""
    repeats: NonNegativeInt = 0
    """Runs of the best trial and of the recipe's own values with other seeds (`train.seed`), to measure the noise."""
    output: str = ""
    """Folder of the study; by default `runs/` and the name of its file."""


@dataclass(frozen=True)
class StudyFile:
    """A study as it was read: its options, overrides that are the recipe's, and where each key stands."""

    path: Path
    study: Study
    overrides: tuple[str, ...]
    found: Findings

    def recipe_path(self) -> Path:
        """Return the file of the recipe."""
        beside = self.path.parent / self.study.recipe
        return beside if beside.exists() else Path(self.study.recipe)

    def output(self) -> str:
        """Return the folder of the study."""
        return self.study.output or f"runs/{self.path.stem}"


def read_study(path: Path, words: Sequence[str] = ()) -> StudyFile:
    """Read a study file. Words `key=value` override its keys; those that it does not have are overrides of the recipe.

    Raises RecipeError with every problem, or PluginError for a sampler or pruner that no package brings.
    """
    document = read_yaml(path)
    data: dict[str, Any] = deepcopy(document.data)
    found = Findings(dict(document.marks), folder=path.parent)
    if not data.keys() & {"recipe", "space"}:
        fix = "write a file with `recipe:`, the path of a recipe, and `space:`, what to try for its keys"
        raise RecipeError("is no study: it names neither a recipe nor a space", where=str(path), fix=fix)
    overrides = []
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise RecipeError(f"`{word}` is not key=value", where=COMMAND)
        if key.partition(".")[0] not in Study.model_fields:
            overrides.append(word)
            continue
        given = apply_override(data, key, parse_scalar(text), sections.nested_slots(Study))
        found.marks.update({given[:end]: COMMAND for end in range(1, len(given) + 1) if given[:end] not in found.marks})
        found.marks[given] = COMMAND
    data = {key: value for key, value in data.items() if value is not None}
    # written out even where they are the default, so that the study records whose they are
    study = sections.config(Study, {"sampler": {}, "pruner": {}} | data, (), found)
    raise_problems(found)
    assert isinstance(study, Study)
    return StudyFile(path, study, tuple(overrides), found)


def raise_problems(found: Findings) -> None:
    """Raise RecipeError with what was found wrong, if anything was."""
    if found.problems:
        raise RecipeError(list(dict.fromkeys(found.problems)))
