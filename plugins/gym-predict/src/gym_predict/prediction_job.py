"""What is to be predicted: the rows of a recipe, and the model that answers them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gym_core import Recipe, RecipeError, dialect, load_recipe, sections
from gym_core.discovery import entries, nearest
from gym_core.errors import Problem
from gym_core.files import expanded
from gym_core.loading import load
from gym_core.sections import Findings, named_elsewhere
from gym_core.yamlfile import parse_scalar, read_yaml
from gym_data.kinds import Data
from gym_manage.recorded import recorded
from gym_predict.options import PredictOptions
from gym_serve.options import engine_named, report
from gym_torch.checkpoints.base_model import base_of, is_gone

DIALECTS = "predict_dialects"
FOLDER = "predict"


@dataclass(frozen=True)
class Task:
    """Rows, a model, and how it answers."""

    recipe: Recipe  #: whose data are answered
    options: PredictOptions
    output: Path


def task(given: Path, words: Sequence[str]) -> Task:
    """Return what a run, its recipe, or a file of another dialect means; `key=value` words set options, or change the recipe.

    Raises RecipeError with every problem found, and BusyError where the run is not trained to its end.
    """
    folder = given
    if given.suffix in (".yaml", ".yml"):
        document = read_yaml(given)
        reader = next((entry for entry in entries(DIALECTS) if entry.name in document.data), None)
        if reader is not None:
            data, found = deepcopy(document.data), Findings(dict(document.marks), folder=given.parent)
            for word in words:
                mark = dialect.apply_override(data, *_pair(word))
                found.marks[mark] = "command line"
            told = load(reader)(data, found)
            report(found)
            return _made(load_recipe(told["recipe"]), told["options"], found)
        folder = expanded(load_recipe(given).output)
    run = recorded(folder)
    own = {key: value for key, value in map(_pair, words) if key.partition(".")[0] in PredictOptions.model_fields}
    changes = [word for word in words if _pair(word)[0] not in own]
    if is_gone(run.artifact) and "base" not in own:
        base_of(run.artifact)  # which says what to do
    if "base" in own and run.artifact.kind != "model":
        changes.insert(0, f"model.path={own['base']}")  # whose tokenizer reads the rows
    recipe = _changed(run.recipe, changes)
    options: dict[str, Any] = {"models": [str(folder)], "output": str(run.output / (FOLDER + run.label))}
    for key, value in own.items():
        dialect.apply_override(options, key, value)
    return _made(recipe, options, Findings(dict.fromkeys([(key,) for key in own], "command line")))


def _changed(recipe: Mapping[str, Any], words: Sequence[str]) -> Recipe:
    """Return the recipe with these changes. Raises RecipeError, which knows the options of this command too."""
    keys = [_pair(word)[0] for word in words]
    if meant := {key: named_elsewhere(key, [PredictOptions]) for key in keys if named_elsewhere(key, [PredictOptions])}:
        raise RecipeError(
            [Problem("unknown key", "command line", key, f"did you mean `{own}`?") for key, own in meant.items()]
        )
    try:
        return load_recipe(recipe, words)
    except RecipeError as error:
        like = {key: nearest(key, PredictOptions.model_fields, cutoff=0.75) for key in keys}
        raise RecipeError(
            [
                replace(problem, fix=f"did you mean `{like[problem.key]}`?") if like.get(problem.key) else problem
                for problem in error.problems
            ]
        ) from None


def _pair(word: str) -> tuple[str, Any]:
    key, equals, text = word.partition("=")
    if not equals or not key:
        raise RecipeError(f"`{word}` is not key=value", where="command line")
    return key, parse_scalar(text)


def _made(recipe: Recipe, options: Mapping[str, Any], findings: Findings) -> Task:
    found = sections.config(PredictOptions, engine_named(options), (), findings)
    report(findings)
    assert isinstance(found, PredictOptions)
    output = found.output
    assert output is not None
    if found.media is None and isinstance(recipe.data, Data):  # a prompt is laid out and shown by the same options
        found = found.model_copy(update={"media": recipe.data.reads_media()})
    return Task(recipe, found, output)
