"""From sources to structured rows: opening, telling the format, filling variables, what to do with bad rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import numpy as np

from gym_core import DataError, GymError
from gym_core.loading import load_component
from gym_data.column_tracking import TrackedRow
from gym_data.config import DatasetConfig
from gym_data.formats import Text
from gym_data.formats.detect import detect, detect_prompt, told_by
from gym_data.formats.parsing import UntrainableRowError, no_marked_media
from gym_data.kinds import Format, Source
from gym_data.opened_source import Opened, registered
from gym_data.provenance import answering, blamed, called, name_of
from gym_data.rows import JUDGED, SHAPES, Conversation, Prompt, Row, Structured, Tools, content_key
from gym_data.shapes import brought, rows_of
from gym_data.tally import Tally

PEEK = 20  #: rows looked at to tell a format, and which columns it does not read
HELD_OUT = "held out for evaluation"
READERS = {"audio": "sound"}  #: components that read a medium, where it is another than `vision`
_VARIABLE = re.compile(r"\{\{\s*(\w+)\s*\}\}")


@runtime_checkable
class PromptReader(Protocol):
    """A reader of rows that hold a prompt, with an answer or without."""

    def asked(self, row: Mapping[str, Any]) -> tuple[Conversation, str]:
        """Return what comes before the answer, and the answer, or nothing. Raises ValueError for a row that asks nothing."""
        ...


class Drawn(NamedTuple):
    """A row as its source yields it."""

    source: int
    number: int  #: from 1
    row: Mapping[str, Any]
    times: int  #: how often it is drawn


@dataclass(frozen=True)
class Record:
    """A structured row and where it came from."""

    source: int
    number: int  #: from 1
    times: int  #: how often it is drawn
    row: Structured
    key: bytes  #: equal for equal contents


class Reader:
    """Reads all sources of a configuration, and counts."""

    def __init__(self, config: DatasetConfig, shape: str, seed: int, branches: bool = False, tools: Tools = ()) -> None:
        """Open the sources; `branches` says whether sequences of a conversation may be one example, `tools` are on offer in
        prompts whose rows offer none.

        Raises DataError where one is missing, empty, or of no known format.
        """
        self.wanted = rows_of(shape)
        if not self.wanted:
            raise DataError(f"no rows of shape `{shape}`", key="data", fix=f"known: {', '.join(SHAPES)}")
        self.config, self.shape, self.seed = config, shape, seed
        self.branches, self.tools = branches, tuple(map(dict, tools))
        self.opened = [self._open(source) for source in config.located()]
        self.tallies = [Tally(opened.name) for opened in self.opened]
        self._given: Sequence[Drawn] | None = None
        self._without: Container[bytes] = ()

    def of(self, rows: Sequence[Drawn], without: Container[bytes] = ()) -> Reader:
        """Return what reads these rows alone, but for those of such a key, and counts anew."""
        other = copy(self)
        other.tallies, other._given, other._without = [Tally(each.name) for each in self.opened], rows, without
        return other

    def drawn(self) -> Iterator[Drawn]:
        """Yield the rows of all sources, one after the other, as they are."""
        return chain.from_iterable(map(self.drawn_of, range(len(self.opened))))

    def records(self) -> Iterator[Record]:
        """Yield the rows of all sources in order. Raises DataError at a bad row, unless these are skipped."""
        converts: dict[int, Callable[[Mapping[str, Any]], Structured]] = {}
        for source, number, row, times in self.drawn() if self._given is None else self._given:
            opened = self.opened[source]
            if source not in converts:
                converts[source] = self._convert(opened)
            self.tallies[source].rows += 1
            try:
                structured = self._watched(source, converts[source])(_filled(row, self.config.variables))
                self._check_media(structured, row)
            except ValueError as error:
                self.bad(source, number, error)
                continue
            except Exception as error:  # a format is foreign code: it can raise whatever Python can
                raise blamed(opened.format, f"row {number}: reading it", error, opened.name) from error
            if not isinstance(structured, self.wanted):
                raise self._mismatch(source, structured)
            key = content_key(structured)
            if key in self._without:
                self.tallies[source].dropped[HELD_OUT] += 1
                continue
            yield Record(source, number, times, structured, key)

    def _check_media(self, structured: object, row: Mapping[str, Any]) -> None:
        """Raise ValueError for a row with images, videos or sounds that nothing reads."""
        media = structured.beside if isinstance(structured, Row) else ()
        if not media:
            no_marked_media(row)
            return
        name = media[0].medium
        if self.shape == "text":
            raise ValueError(f"it has {name}s, which plain text has no place for")
        if self.config.media is None:
            fix = f"`data: {{media: {READERS.get(name, 'vision')}}}` reads (package gym-vision)"
            raise ValueError(f"it has {name}s, which {fix}")

    def _watched(
        self, source: int, convert: Callable[[Mapping[str, Any]], Structured]
    ) -> Callable[[Mapping[str, Any]], Structured]:
        """Return what converts a row; of the first ones it notes which columns the format does not read."""
        tally = self.tallies[source]
        # All columns of a prompt go to whoever judges its answers.
        if tally.rows > PEEK or self.shape == "prompt":
            return convert

        def noting(row: Mapping[str, Any]) -> Structured:
            watched = TrackedRow(row)
            structured = convert(watched)
            tally.read |= watched.read
            tally.unread |= watched.unread
            return structured

        return noting

    def bad(self, source: int, number: int, error: ValueError, who: str = "") -> None:
        """Count a row that cannot be trained on; `who` says so, by default the format.

        Raises DataError unless such rows are skipped, or the row is sound and only has nothing to compare.
        """
        why = str(error)
        if isinstance(error, UntrainableRowError) and self.shape in JUDGED:
            self.tallies[source].dropped[error.reason] += 1
            return
        if self.config.bad_rows == "stop":
            raise DataError(
                f"row {number}: {why}",
                where=f"{self.opened[source].name} ({who or called(self.opened[source].format)})",
                fix="mend the row, or leave such rows out with `data.bad_rows: skip`",
            ) from error
        self.tallies[source].bad[_general(why)] += 1

    def refused(self, record: Record, error: ValueError) -> None:
        """Count a row that the chat template does not take, as `bad` does."""
        template = self.config.template
        self.bad(record.source, record.number, error, called(template) if template else "the model's chat template")

    def drawn_of(self, source: int) -> Iterator[Drawn]:
        """Yield the rows of one source, at most `max_samples` of them."""
        opened = self.opened[source]
        rows = enumerate(opened.read(None if opened.samples else self.config.max_samples), 1)
        if opened.samples is None:
            yield from (Drawn(source, number, row, 1) for number, row in rows)
            return
        wanted = min(opened.samples, self.config.max_samples or opened.samples)
        drawn = draw(sum(1 for _ in opened.read()), wanted, self.seed + source)
        yield from (Drawn(source, number, row, drawn[number]) for number, row in rows if number in drawn)

    def _convert(self, opened: Opened) -> Callable[[Mapping[str, Any]], Structured]:
        with answering(opened.format, "building it", opened.name):
            reader = opened.format.build()
        if self.shape != "prompt":
            convert: Callable[[Mapping[str, Any]], Structured] = reader.convert
            return convert
        if not isinstance(reader, PromptReader):
            raise DataError(
                f"rows of the format `{name_of(opened.format)}` ask nothing, and this algorithm answers",
                where=opened.where,
                fix="say which columns hold a prompt: data: {format: {name: alpaca, prompt: question}}",
            )
        asks: PromptReader = reader

        def prompt(row: Mapping[str, Any]) -> Prompt:
            conversation, answer = asks.asked(row)
            return Prompt(conversation, {"answer": answer, **row} if answer else row)

        return prompt

    def _open(self, source: Source) -> Opened:
        name = source.title or name_of(source)
        with answering(source, "opening it", source.title):
            built = source.build()
        told = registered(built)
        opened = Opened(name, source, built, Text(), source.samples or (told.samples if told else None))
        found = source.read_as or (told.format if told else None)
        if found is None and source.format:
            found = cast(Format, load_component("formats", source.format)[1]())
        return replace(opened, format=found or self.config.format or self._told(opened))

    def _told(self, opened: Opened) -> Format:
        first = list(opened.read(PEEK))
        if not first:
            raise DataError("the dataset holds no rows", where=opened.name)
        columns = list(dict.fromkeys(column for row in first for column in row))
        own = brought(self.shape)
        told = Text() if self.shape == "text" and "text" in columns else detect(first, self.shape)
        found = own.detect(first) if own else told
        asks = detect_prompt(first, answered=False)
        if found is None and self.shape == "prompt":
            found = asks
        if found is None:
            raise (DataError if asks is None else ShapeError)(
                f"no known row format has the columns {', '.join(map(str, columns))}",
                where=opened.name,
                fix=f"say which are which, such as data: {{format: {{{own.told_by if own else told_by(first)}}}}}",
            )
        return found

    def _mismatch(self, source: int, row: Structured) -> GymError:
        opened, made = self.opened[source], type(row).__name__
        if not isinstance(row, Row):
            return opened.fault(opened.format, f"it makes {made} of a row, which is no `gym_data.rows.Row`")
        held_out = source >= len(self.config.sources)
        instead = "name others in `data.validation_sources`" if held_out else "choose another algorithm"
        if self.shape == "feedback" and not held_out:
            instead = (
                "add a column `label`, or to unlearn `sources: [{name: forget, source: ...}, {name: retain, ...}]`"
            )
        return ShapeError(
            f"its rows are of shape `{made.lower()}`, and this algorithm learns from `{self.shape.rpartition(':')[2].lower()}`",
            where=opened.where,
            fix=f"{instead}, or say which columns to read: data: {{format: {{name: ...}}}}",
        )


class ShapeError(DataError):
    """Rows are no conversations, pairs, ..., and those are asked for; or they ask, and it is not known where answers are."""


def draw(count: int, wanted: int, seed: int) -> dict[int, int]:
    """Return how often each of `count` rows (from 1) is drawn: at random, none more than once more often than another."""
    if count == 0:
        return {}
    whole, rest = divmod(wanted, count)
    chosen = {int(row) + 1 for row in np.random.default_rng(seed).permutation(count)[:rest]}
    times = {row: whole + (row in chosen) for row in range(1, count + 1)}
    return {row: often for row, often in times.items() if often}


def _filled(value: Any, variables: Mapping[str, str]) -> Any:
    """Put values in place of `{{name}}`, in every text of a row."""
    if not variables:
        return value
    if isinstance(value, str):
        return _VARIABLE.sub(lambda match: variables.get(match.group(1), match.group()), value)
    if isinstance(value, Mapping):
        return {key: _filled(item, variables) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_filled(item, variables) for item in value]
    return value


def _general(why: str) -> str:
    """Leave numbers out of a reason, so that equal faults count together."""
    return re.sub(r"\b\d+\b", "N", why)
