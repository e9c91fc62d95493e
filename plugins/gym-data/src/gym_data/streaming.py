"""Rows that are read while training goes on, a window at a time; each window is a small dataset in memory."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import numpy as np

from gym_core import DataError
from gym_data.encodings.encoders import Encoded, encoded
from gym_data.examples import Examples
from gym_data.mixing import MIXES
from gym_data.report import report_of
from gym_data.row_reader import Drawn, Reader
from gym_data.sequences import Held, fingerprint
from gym_data.shapes import example_of
from gym_data.tokenizer import Tokenizer

EMPTY = 100  #: windows in a row without anything to learn, after which nothing is hoped for
NOTE = "rows are streamed: the lengths are those of the first window of {} rows, and rows are counted as they are read"


@dataclass(frozen=True)
class Window:
    """Samples that are in memory together, in the order of their rows."""

    examples: Examples
    number: int  #: windows before it
    epoch: int  #: passes over the rows before it
    last: bool  #: whether a pass over the rows ends with it
    state: Mapping[str, Any]  #: plain data by which `Stream.windows` begins with it again


@dataclass
class _Rows:
    """The rows of a source, which can be read again."""

    reader: Reader
    source: int

    def __iter__(self) -> Iterator[Drawn]:
        return self.reader.drawn_of(self.source)


class Stream:
    """Windows of `buffer_size` rows, mixed as `mix` says, pass after pass: the last of a pass may be smaller.

    The first `validation` rows of a pass are held out, and so are rows that say the same.
    """

    def __init__(self, reader: Reader, tokenizer: Tokenizer) -> None:
        """Take the opened sources, and read what is held out. Raises DataError where rows cannot be streamed."""
        for opened in reader.opened:
            if opened.samples:
                why = f"{opened.samples} rows are drawn from it where all are read first"
                raise DataError(why, where=opened.name, key="data.streaming", fix="leave `num_samples` out")
        self.reader, self.tokenizer = reader, tokenizer
        self.aside = int(reader.config.validation)
        kept = [*islice(self._mixed(), self.aside)]
        self.held_out_keys = {record.key for record in reader.of(kept).records()}
        self.held_out: Examples | None = None
        self.held_out_content = ""  #: a hash of what they hold
        self.report: dict[str, Any] = {}  #: of all windows so far
        if kept:
            self.held_out, found, self.held_out_content = self._encoded(kept)
            if not len(self.held_out):
                raise _nothing(found, "the rows that are held out hold")

    def windows(self, state: Mapping[str, Any] | None = None) -> Iterator[Window]:
        """Yield the windows in which there is something to learn, from the first on, or from that of this state.

        Raises DataError where that window is another by now, and where nothing is learnt from a whole pass.
        """
        begun: Mapping[str, Any] = state or {"epoch": 0, "rows": 0, "number": 0, "report": {}}
        number, report, empty = begun["number"], begun["report"], 0
        size = self.reader.config.buffer_size
        for epoch in count(begun["epoch"]):
            place = begun["rows"] if epoch == begun["epoch"] else 0
            rows = islice(self._mixed(), self.aside + place, None)
            ahead, fruitless = [*islice(rows, 1)], place == 0
            while ahead:
                examples, own, content = self._encoded([*ahead, *islice(rows, size - 1)], self.held_out_keys)
                ahead = [*islice(rows, 1)]
                if len(examples):
                    at = {"epoch": epoch, "rows": place, "number": number, "content": content, "report": report}
                    if state and number == state["number"] and content != state["content"]:
                        raise _changed(place)
                    self.report = report = added(report, own)
                    yield Window(examples, number, epoch, not ahead, at)
                    number, empty, fruitless = number + 1, 0, False
                else:
                    empty += 1
                    report = added(report, own)
                place += size
                if empty == EMPTY:
                    raise _nothing(own, f"{EMPTY} windows in a row hold")
            if fruitless:
                raise _nothing(report, "its rows hold")

    def _mixed(self) -> Iterator[Drawn]:
        """Yield the rows of one pass."""
        config = self.reader.config
        sources = [_Rows(self.reader, source) for source in range(len(self.reader.opened))]
        return MIXES[config.mix](sources, config.mix_weights, self.reader.seed)

    def _encoded(
        self, rows: list[Drawn], without: frozenset[bytes] | set[bytes] = frozenset()
    ) -> tuple[Examples, dict[str, Any], str]:
        """Return the examples of some rows, the report about them, and a hash of what they hold."""
        # Texts of one source are joined, so its rows lie together; samples are shuffled later.
        reader = self.reader.of(sorted(rows, key=lambda row: row.source), without)
        into = Held()
        found: Encoded = encoded(reader, self.tokenizer, into, progress=False)
        order = np.arange(len(found.lengths), dtype=np.int64)
        into.extend(train=order)
        arrays = into.arrays()
        names = [opened.name for opened in reader.opened]
        report = report_of(reader, found.lengths, found.learnt, order, order[:0], found.duplicates)
        media = self.tokenizer.media
        return (
            Examples(arrays.__getitem__, "train", names, example_of(reader.shape), media),
            report,
            fingerprint(arrays),
        )


@dataclass(frozen=True)
class StreamedData:
    """Windows to train on, of which `train` is the first, perhaps examples to validate on, and what became of the rows so far."""

    train: Examples
    validation: Examples | None
    fingerprint: str  #: of all options that make examples of rows, and of what is held out
    stream: Stream

    @property
    def report(self) -> dict[str, Any]:
        """What became of the rows that were read."""
        held = 0 if self.validation is None else len(self.validation)
        note = NOTE.format(f"{self.stream.reader.config.buffer_size:,}")
        report = self.stream.report
        return {**report, "validation": held, "notes": [*report["notes"], note], "cached": False}


def streamed(stream: Stream, made_by: Mapping[str, Any], validation: Examples | None) -> StreamedData:
    """Return a stream with its first window read. `made_by` are the options that make examples of rows, and what names those
    of `validation`.
    """
    config = stream.reader.config
    named = config.model_dump(mode="json", include={"sources", "format", "template", "buffer_size"})
    digest = hashlib.sha256(json.dumps([made_by, named, stream.held_out_content], sort_keys=True).encode()).hexdigest()[
        :32
    ]
    first = next(stream.windows())
    return StreamedData(first.examples, validation or stream.held_out, digest, stream)


_COUNTS = ("rows", "examples", "tokens", "trained_tokens", "duplicates", "truncated", "dropped", "bad")
_REASONS = ("bad", "dropped", "noticed", "left_out_by_template")


def added(before: Mapping[str, Any], report: dict[str, Any]) -> dict[str, Any]:
    """Return a report with what an earlier one counted; lengths and notes are those of the first."""
    if not before:
        return report
    sources = [
        {
            **own,
            **{key: old[key] + own[key] for key in ("rows", "truncated")},
            **{key: dict(Counter(old[key]) + Counter(own[key])) for key in _REASONS},
        }
        for old, own in zip(before["sources"], report["sources"], strict=True)
    ]
    return {**before, **{key: before[key] + report[key] for key in _COUNTS}, "sources": sources}


def _changed(place: int) -> DataError:
    return DataError(
        f"the data changed since the checkpoint: the window that begins after {place:,} rows is another",
        key="data",
        fix="bring the old data back, or start over in another `output`",
    )


def _nothing(report: Mapping[str, Any], what: str) -> DataError:
    reasons = sum(
        (Counter(each["bad"]) + Counter(each["dropped"]) for each in report.get("sources", ())), Counter[str]()
    )
    most = reasons.most_common(1)
    return DataError(
        f"{what} nothing to learn from",
        key="data.sources",
        fix=f"most often: {most[0][0]} ({most[0][1]} rows)" if most else "name a source that holds rows",
    )
