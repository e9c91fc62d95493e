"""Has the data plugin prepare the samples of a run, and says what became of the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import dataclass
from datetime import date, datetime
from functools import partial
from typing import Any, Protocol, TypeGuard, runtime_checkable

import numpy as np
import numpy.typing as npt

from gym_core import DataError, PluginError, Recipe, Run
from gym_core.record import RunRecord
from gym_data.kinds import Data
from gym_data.report import left_out
from gym_optim.promises import named, promised
from gym_torch.batch import Example
from gym_torch.config import TorchAlgorithm
from gym_torch.console import say, warn
from gym_torch.contract_checks import plain_data
from gym_torch.kinds import part
from gym_torch.loop.sample_positions import PlacedExamples, SamplePositions
from gym_torch.model.loading import LoadedModel
from gym_torch.shared_prefixes import may_share
from gym_torch.source import E_co, Examples
from gym_torch.streaming import Window, Windows


@runtime_checkable
class Prepared(Protocol[E_co]):
    """What the data plugin builds."""

    @property
    def train(self) -> Examples[E_co]:
        """Samples to learn from."""
        ...

    @property
    def validation(self) -> Examples[E_co] | None:
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


@dataclass(frozen=True)
class CheckedExamples:
    """Samples, each looked at when it is taken: a token without an embedding would be an IndexError of the model."""

    examples: Examples
    vocabulary: int  #: embeddings of the model
    by: str  #: the class that prepared them

    def __post_init__(self) -> None:
        """Look at the lengths, by which steps are planned before a sample is taken. Raises PluginError."""
        lengths = getattr(self.examples, "lengths", None)
        if not _is_array(lengths, "iu") or len(lengths) != len(self.examples):
            raise PluginError(
                f"the `lengths` of {len(self.examples)} samples are {_array(lengths)}",
                where=self.by,
                key="data",
                fix="give the tokens of each sample, an array of numpy: int64 [samples]",
            )

    @property
    def lengths(self) -> npt.NDArray[np.integer]:
        """Tokens of each sample."""
        return self.examples.lengths

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.examples)

    def __getitem__(self, index: int, /) -> Example:
        """Return one sample. Raises PluginError where its tokens are no token ids, DataError where the model has too few."""
        example = self.examples[index]
        tokens, trained = example.tokens, example.trained
        if not (_is_array(tokens, "iu") and _is_array(trained, "b") and trained.shape == tokens.shape):
            raise PluginError(
                f"sample {example.id} has tokens of {_array(tokens)}, trained of {_array(trained)}",
                where=self.by,
                key="data",
                fix="give it token ids and whether each is learnt, arrays of numpy: int32 [length] and bool [length]",
            )
        if len(tokens) != self.lengths[index]:
            raise PluginError(
                f"sample {example.id} has {len(tokens)} tokens, and `lengths` says {self.lengths[index]}",
                where=self.by,
                key="data",
                fix="let `lengths` say how many tokens each sample has: batches are made of it",
            )
        outside = tokens[(tokens < 0) | (tokens >= self.vocabulary)]
        if len(outside):
            raise DataError(
                f"sample {example.id} has the token {outside[0]}, and the model has embeddings for 0 to {self.vocabulary - 1:,}",
                where=self.by,
                key="data",
                fix="make token ids with the tokenizer of this model, or set `model: {resize_vocab: true}` for a larger one",
            )
        return example


def _is_array(found: object, kinds: str) -> TypeGuard[npt.NDArray[Any]]:
    return isinstance(found, np.ndarray) and found.ndim == 1 and found.dtype.kind in kinds


def _array(found: object) -> str:
    """Return what it is, as errors write it."""
    return f"{found.dtype} {list(found.shape)}" if isinstance(found, np.ndarray) else f"a {type(found).__name__}"


@dataclass(frozen=True)
class CheckedWindow:
    """A window of samples that are looked at."""

    window: Window
    examples: Examples

    number = property(lambda self: self.window.number)
    epoch = property(lambda self: self.window.epoch)
    last = property(lambda self: self.window.last)
    state = property(lambda self: self.window.state)


@dataclass(frozen=True)
class CheckedData:
    """`Prepared`, of samples that are looked at."""

    train: Examples
    validation: Examples | None
    validation_parts: Mapping[str, Examples]
    prepared: Prepared

    @property
    def fingerprint(self) -> str:
        """A string that changes with the samples."""
        return self.prepared.fingerprint

    @property
    def report(self) -> dict[str, Any]:
        """What became of the rows by now."""
        return self.prepared.report


@dataclass(frozen=True)
class CheckedWindows:
    """`Windows`, of samples that are looked at."""

    stream: Windows
    check: Callable[[Examples], Examples]

    def windows(self, state: Mapping[str, Any] | None = None) -> Iterator[CheckedWindow]:
        """Yield windows for ever, from the first on, or from that of this state."""
        for window in self.stream.windows(state):
            yield CheckedWindow(window, self.check(window.examples))


@dataclass(frozen=True)
class CheckedStream(CheckedData):
    """The same of samples that come window by window, of which `train` are the first."""

    stream: CheckedWindows


@runtime_checkable
class DataInParts(Prepared[E_co], Protocol[E_co]):
    """What a data plugin builds where what is held out is measured part by part as well."""

    @property
    def validation_parts(self) -> Mapping[str, Examples[E_co]]:
        """The samples of `validation`, by what its figures are called."""
        ...


@runtime_checkable
class StreamedData(Prepared[E_co], Protocol[E_co]):
    """What a data plugin builds whose samples come window by window."""

    @property
    def stream(self) -> Windows[E_co]:
        """All samples; `train` are those of its first window."""
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
        branches=config.branches and may_share(recipe, model.layout),
        tools=config.tools(),
    )
    first: list[object] = []
    run.ranks.agree(lambda: first.append(build()))
    found = first[0] if first else build(made=True)
    prepared = promised(found, Prepared, section, "data")  # type: ignore[type-abstract]
    parts: tuple[tuple[str, type], ...] = (("train", Sized), ("fingerprint", str), ("report", dict))
    for part_of, wanted in parts:
        promised(getattr(prepared, part_of), wanted, f"`{part_of}` of {named(section)}", "data")
    plain_data(prepared.report, f"`report` of {named(section)}", "data", "run.json")
    missing = left_out(prepared.report)
    if missing:
        say(missing)
    for note in prepared.report.get("notes", ()):
        warn(note)
    by, vocabulary = named(recipe.data), model.model.get_input_embeddings().weight.shape[0]
    sample_positions = SamplePositions(model.model, by)

    def check(examples: Examples) -> Examples:
        checked = CheckedExamples(examples, vocabulary, by)
        placed = promised(examples, PlacedExamples, section, "data") if section.knows_positions() else None  # type: ignore[type-abstract]
        sample_positions.check(checked, placed.positions if placed else None)
        return checked

    validation = None if prepared.validation is None else check(prepared.validation)
    parted = promised(found, DataInParts, section, "data").validation_parts if section.measures_apart() else {}  # type: ignore[type-abstract]
    checked = check(prepared.train), validation, {name: check(each) for name, each in parted.items()}, prepared
    if not section.streams():
        return CheckedData(*checked)
    stream = promised(found, StreamedData, section, "data").stream  # type: ignore[type-abstract]
    return CheckedStream(*checked, CheckedWindows(stream, check))


def described(recipe: Recipe, data: Prepared) -> str:
    """Return how many samples there are, as people are told."""
    return "samples that are streamed" if streams(recipe) else f"{len(data.train):,} samples"


def streams(recipe: Recipe) -> bool:
    """Whether samples come window by window, as the data section says."""
    data = part(recipe, Data)
    return data is not None and data.streams()


def measured_apart(recipe: Recipe) -> bool:
    """Whether what is held out is measured part by part as well, as the data section says."""
    data = part(recipe, Data)
    return data is not None and data.measures_apart()


def steps_end_with_epochs(recipe: Recipe) -> bool:
    """Whether the last step of an epoch ends with it, as the data section says."""
    data = part(recipe, Data)
    return data is not None and data.steps_end_with_epochs()


def begun(record: RunRecord) -> date | None:
    """Return the day on which a run began, which a chat template may have been told; None where nothing says it."""
    started: str | None = record.read().get("started")
    return datetime.fromisoformat(started).date() if started else None
