"""How much a run has to do: its steps, its tokens and its largest batch, from the data or else from the recipe."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from gym_core import GymError, Recipe, Train
from gym_data import DatasetConfig
from gym_torch.batch import Batch
from gym_torch.config import TorchAlgorithm
from gym_torch.objective import Objective
from gym_torch.plan.batch import lengths_of, planned
from gym_torch.source import Dataset, Source

LOOK = 200  #: steps whose batches are looked at for the largest
UNKNOWN = 2048  #: tokens of the longest sample where neither data nor recipe tells


@dataclass(frozen=True)
class Workload:
    """What a run works on."""

    batch: Batch  #: the largest
    steps: int | None  #: optimizer steps; None where only the data could tell
    tokens: int | None
    note: str  #: what this is based on


def workload(recipe: Recipe, objective: Objective, path: Path, train: Train) -> Workload:
    """Return the work of a recipe; `path` is the directory of the model, `train` has its batch size settled.

    Raises GymError for an algorithm that makes its samples itself.
    """
    if recipe.algorithm.rows == "prompt":
        raise GymError(
            "how long the answers will be is not known before they are given, so their memory is not planned yet",
            key="algorithm",
            fix="`train.batch_size` is the number of answers in a pass: begin with few",
        )
    try:
        source = _source(recipe, objective, path, train)
    except GymError as error:  # the border to the data plugin: a plan can do without
        return _assumed(recipe, objective, train, str(error.problems[0].why))
    return of_source(source, objective)


def of_source(source: Source, objective: Objective) -> Workload:
    """Return the work of prepared data."""
    largest, tokens, seen = None, 0, 0
    for step in islice(source.steps(0), LOOK):
        seen += 1
        for examples in step.batches:
            batch = objective.collate(examples)
            tokens += batch.size
            if largest is None or (batch.tokens.numel(), len(batch.targets)) > _extent(largest):
                largest = batch
    assert largest is not None
    return Workload(
        largest,
        source.total,
        round(tokens / seen * source.total),
        f"the largest batch of the first {seen:,} steps" if seen < source.total else "the largest batch of the run",
    )


def longest(recipe: Recipe) -> int:
    """Return the tokens of the longest sample that the data section lets through."""
    return recipe.data.cutoff if isinstance(recipe.data, DatasetConfig) else UNKNOWN


def _extent(batch: Batch) -> tuple[int, int]:
    return batch.tokens.numel(), len(batch.targets)


def _source(recipe: Recipe, objective: Objective, path: Path, train: Train) -> Dataset:
    """Prepare the data as a run would. Raises GymError where it cannot be."""
    if not any(path.glob("tokenizer*")):
        raise GymError("there is no tokenizer beside config.json")
    assert isinstance(recipe.algorithm, TorchAlgorithm) and recipe.data is not None
    prepared = recipe.data.build(tokenizer=path, rows=recipe.algorithm.rows, seed=train.seed)
    return Dataset(prepared.train, train, prepared.fingerprint, objective.layout)


def _assumed(recipe: Recipe, objective: Objective, train: Train, why: str) -> Workload:
    """Plan for samples as long as they may be, every token trained."""
    length = longest(recipe)
    size = train.batch_tokens
    lengths = lengths_of(size, length) if isinstance(size, int) else [length] * train.batch_size
    batch = planned(objective, lengths)
    tokens = train.max_steps * train.accumulate * batch.size if train.max_steps else None
    return Workload(batch, train.max_steps, tokens, f"without data ({why}): samples of {length:,} tokens, all trained")
