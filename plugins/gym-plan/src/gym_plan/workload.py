"""How much a run has to do: its steps, its tokens and its largest batch, from the data or else from the recipe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gym_core import GymError, Recipe, Train
from gym_core.component import construct
from gym_data.kinds import Data
from gym_plan.synthetic_examples import SyntheticExamples
from gym_torch.batch import Batch
from gym_torch.config import torch_algorithm
from gym_torch.kinds import part
from gym_torch.loop.prepared_data import steps_end_with_epochs
from gym_torch.objective import Objective
from gym_torch.packing import Layout
from gym_torch.shared_prefixes import may_share
from gym_torch.source import Dataset, Examples, Source

LOOK = 200  #: steps whose batches are looked at for the largest
UNKNOWN = 2048  #: tokens of the longest sample where neither data nor recipe tells


@dataclass(frozen=True)
class Workload:
    """What a run works on."""

    batch: Batch  #: the largest
    steps: int | None  #: optimizer steps; None where only the data could tell
    tokens: int | None  #: of its samples, as a run counts them
    computed: int | None  #: of these, what several samples of a batch begin with counted once
    note: str  #: what this is based on


def workload(recipe: Recipe, objective: Objective[Any, Any], path: Path, train: Train) -> Workload:
    """Return the work of a recipe; `path` is the directory of the model, `train` has its batch size settled.

    Raises RecipeError where the steps cannot be laid out as the recipe says.
    """
    try:
        examples = _prepared(recipe, path, train, objective.layout)
    except GymError as error:  # the border to the data plugin: a plan can do without
        return _assumed(recipe, objective, train, str(error.problems[0].why))
    return of_examples(recipe, objective, examples, train)


def of_examples(recipe: Recipe, objective: Objective[Any, Any], examples: Examples, train: Train) -> Workload:
    """Return the work of prepared samples."""
    source, note = steps_over(recipe, objective, examples, train)
    looked_at = source.largest(1 if note else LOOK)
    largest, tokens, computed = None, 0, 0
    for number in looked_at:
        for samples in next(source.steps(number)).batches:
            batch = objective.collate(samples)
            tokens, computed = tokens + sum(len(sample.tokens) for sample in samples), computed + batch.size
            if largest is None or _extent(batch) > _extent(largest):
                largest = batch
    assert largest is not None
    if whole := len(looked_at) == source.total:
        total = tokens
    else:
        total = source.tokens or round(tokens / len(looked_at) * source.total)
    some = f"the largest batch of the {len(looked_at):,} steps with the most tokens"
    return Workload(
        largest,
        source.total,
        total,
        round(computed / tokens * total),
        note or ("the largest batch of the run" if whole else some),
    )


def steps_over(recipe: Recipe, objective: Objective[Any, Any], examples: Examples, train: Train) -> tuple[Source, str]:
    """Return the steps over samples; or, where samples are made during the run, steps as large as any, and what they are."""
    algorithm = torch_algorithm(recipe)
    if not algorithm.largest_steps:
        whole = steps_end_with_epochs(recipe)
        if algorithm.dataset:
            own: Source = construct(algorithm.dataset, algorithm, examples, train, "", objective.layout, whole)
            return own, ""
        return Dataset(examples, train, layout=objective.layout, whole_epochs=whole), ""
    source: Source = construct(algorithm.largest_steps, algorithm, examples, train, objective.layout)
    answers = f"answers of {algorithm.generated():,} tokens to the longest prompts"
    return source, f"at most: {answers}; what sampling needs comes on top"


def longest(recipe: Recipe) -> int:
    """Return the tokens of the longest sample that the data section lets through."""
    data = part(recipe, Data)
    return (data.longest() if data else None) or UNKNOWN


def full_batch(recipe: Recipe, objective: Objective[Any, Any], train: Train, length: int) -> Workload:
    """Return the work of one step over samples of `length` tokens, all trained, as many as there may be in it."""
    count = train.batch_tokens if isinstance(train.batch_tokens, int) else train.batch_size
    many = SyntheticExamples(torch_algorithm(recipe).rows, length, count)
    return of_examples(recipe, objective, many, train.model_copy(update={"max_steps": 1}))


def _extent(batch: Batch) -> tuple[int, int]:
    return batch.tokens.numel(), len(batch.targets)


def _prepared(recipe: Recipe, path: Path, train: Train, layout: Layout) -> Examples:
    """Prepare the data as a run would. Raises GymError where it cannot be."""
    if not any(path.glob("tokenizer*")):
        raise GymError("there is no tokenizer beside config.json")
    algorithm = torch_algorithm(recipe)
    assert recipe.data is not None  # such algorithms need some
    branches = algorithm.branches and may_share(recipe, layout)
    asked = {"rows": algorithm.rows, "seed": train.seed, "branches": branches, "tools": algorithm.tools()}
    prepared = recipe.data.build(tokenizer=path, **asked)
    examples: Examples = prepared.train
    return examples


def _assumed(recipe: Recipe, objective: Objective[Any, Any], train: Train, why: str) -> Workload:
    """Plan for samples as long as they may be."""
    length = longest(recipe)
    found = full_batch(recipe, objective, train, length)
    assert found.tokens is not None
    tokens = train.max_steps * found.tokens if train.max_steps else None
    note = f"without data ({why}): samples of {length:,} tokens, all trained"
    return Workload(found.batch, train.max_steps, tokens, tokens, note)
