"""Has the data plugin prepare the samples of a run, and says what became of the rows."""

from __future__ import annotations

from datetime import date, datetime
from functools import partial
from typing import Any, Protocol, runtime_checkable

from gym_core import Run
from gym_core.record import RunRecord
from gym_data.kinds import Data
from gym_data.report import left_out
from gym_torch.config import TorchAlgorithm
from gym_torch.console import say, warn
from gym_torch.kinds import part
from gym_torch.model.loading import LoadedModel
from gym_torch.packing import PACKED
from gym_torch.promised import promised
from gym_torch.source import Examples


@runtime_checkable
class Prepared(Protocol):
    """What the data plugin builds."""

    @property
    def train(self) -> Examples:
        """Samples to learn from."""
        ...

    @property
    def validation(self) -> Examples | None:
        """Samples to evaluate on."""
        ...

    @property
    def fingerprint(self) -> str:
        """A string that changes with the samples."""
        ...

    @property
    def report(self) -> dict[str, Any]:
        """What became of the rows, for `run.json`."""
        ...


def prepare(config: TorchAlgorithm, run: Run, model: LoadedModel) -> Prepared:
    """Return the samples of a run, and print what a user may not expect of them. Raises what the data plugin raises.

    The main process tokenizes; the others then find the result in the cache.
    """
    recipe = run.recipe
    section = part(recipe, Data)
    assert section is not None
    build = partial(
        section.build,
        tokenizer=model.path,
        rows=config.rows,
        seed=recipe.train.seed,
        day=begun(run.record),
        branches=config.branches and model.layout is PACKED,  # padded, what they share would stand in every row again
    )
    first: list[object] = []
    run.ranks.agree(lambda: first.append(build()))
    found = first[0] if first else build(made=True)
    prepared = promised(found, Prepared, section, "data")  # type: ignore[type-abstract]
    missing = left_out(prepared.report)
    if missing:
        say(missing)
    for note in prepared.report.get("notes", ()):
        warn(note)
    return prepared


def begun(record: RunRecord) -> date | None:
    """Return the day on which a run began, which a chat template may have been told; None where nothing says it."""
    started: str | None = record.read().get("started")
    return datetime.fromisoformat(started).date() if started else None
