"""Rows of a file and the answers that are written for them: one line each, in order, whatever happens in between."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gym_core.errors import BusyError, DataError, Problem
from gym_core.files import write_atomically
from gym_core.outputlock import OutputLock
from gym_data.formats import Alpaca
from gym_data.formats.alpaca import AlpacaReader
from gym_data.formats.media import content_of, media_of, placed_media
from gym_data.rows import Named
from gym_serve.images import with_parts
from gym_serve.inference.batch_rows import BatchRequest, batch_request, custom_id, options_of
from gym_serve.on_disk import OnDisk

SETTINGS = "inference.json"
INSTRUCTION = AlpacaReader(Alpaca(system="system", history="history", tools="tools"))


@dataclass(frozen=True)
class Row:
    """What is asked."""

    number: int  #: from 0
    digest: str  #: of its line
    request: dict[str, Any]  #: `messages` or `prompt`, and perhaps `tools`
    problem: str = ""  #: why it cannot be asked
    said: Mapping[str, Any] = field(default_factory=dict)  #: sampling options that it says
    batch: BatchRequest | None = None  #: the request that it is, where it is one
    custom_id: str = ""  #: of a request that cannot be asked


def rows(path: Path, start: int = 0) -> Iterator[Row]:
    """Yield the rows of a file from one of them on; a line that cannot be read is a row with a problem, an empty one none."""
    number = -1
    with path.open("rb") as file:
        for line in file:
            if not line.strip():
                continue
            number += 1
            if number >= start:
                yield _row(number, line, path.parent)


def count(path: Path) -> int:
    """Return how many rows a file has. Raises DataError where it cannot be read, or has not a row a line."""
    try:
        with path.open("rb") as file:
            lines = (line for line in file if line.strip())
            first = next(lines, b"")
            if first.lstrip().startswith(b"["):
                fix = "write one row a line, as `jq -c '.[]'` does"
                raise DataError("holds a list, where each line is to be a row", where=str(path), fix=fix)
            return bool(first) + sum(1 for _ in lines)
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", where=str(path), fix="name a JSONL file") from error


def digest(line: bytes) -> str:
    """Return by what a row is known."""
    return hashlib.sha256(line.strip()).hexdigest()[:16]


def _row(number: int, line: bytes, folder: Path) -> Row:
    found: Any = None
    try:
        found = json.loads(line)
        line.decode()
        batch = batch_request(found) if isinstance(found, dict) else None
        request = asked(found, folder) if batch is None else {}
        said = options_of(found) if batch is None else {}
        try:
            json.dumps([request, said, found if batch else None], ensure_ascii=False, default=str).encode()
        except UnicodeEncodeError as error:
            raise ValueError("holds half a character (a lone surrogate), which is no text") from error
        return Row(number, digest(line), request, "", said, batch)
    except (ValueError, RecursionError) as error:
        why = f"{'is no JSON: ' * isinstance(error, json.JSONDecodeError)}{error}".partition("\n")[0][:300]
        return Row(number, digest(line), {}, why, custom_id=custom_id(found))


def asked(row: Any, folder: Path) -> dict[str, Any]:
    """Return what a row asks: `messages` up to the last of the user, `prompt`, `tokens`, or `instruction` with its `input`,
    as training reads it. Images of a row are paths that begin in `folder`.

    Raises ValueError where it asks nothing.
    """
    if not isinstance(row, dict):
        raise ValueError("is no JSON object")
    if isinstance(tokens := row.get("tokens"), list):
        if not tokens or not all(isinstance(token, int) and token >= 0 for token in tokens):
            raise ValueError("`tokens` is no list of token ids")
        return {"tokens": tokens, "images": [OnDisk(image, folder) for image in _images(media_of(row))]}
    messages, tools = row.get("messages"), row.get("tools")
    if messages is None and isinstance(row.get("instruction"), str):
        read, _ = INSTRUCTION.asked(row)
        return {"messages": with_parts(read.messages, _images(read.media), folder), "tools": list(read.tools) or None}
    if messages is None:
        if not isinstance(row.get("prompt"), str) or not row["prompt"]:
            raise ValueError("has neither `messages` nor `prompt`, `tokens` or `instruction`")
        if _images(media_of(row)):
            raise ValueError("it has images, which are read beside `messages`")
        return {"prompt": row["prompt"]}
    if not isinstance(messages, list) or not all(
        isinstance(each, dict)
        and isinstance(each.get("role"), str)
        and isinstance(each.get("content", ""), str | list | None)
        for each in messages
    ):
        raise ValueError("`messages` is no list of messages with `role` and `content`")
    while messages and messages[-1]["role"] == "assistant":  # an answer that is known
        messages = messages[:-1]
    if not messages:
        raise ValueError("`messages` asks nothing")
    if isinstance(tools, str):
        tools = json.loads(tools)
    contents = [content_of(each.get("content") or "", f"message {number}") for number, each in enumerate(messages, 1)]
    texts = [{**each, "content": text} for each, (text, _) in zip(messages, contents, strict=True)]
    placed, media = placed_media(texts, [mark for _, own in contents for mark in own], media_of(row))
    return {"messages": with_parts(placed, _images(media), folder), "tools": tools or None}


def _images(media: Iterable[Named]) -> list[Any]:
    """Return images as a row names them. Raises ValueError for media that replies are not asked about."""
    if other := next((each.medium for each in media if each.medium != "image"), None):
        raise ValueError(f"it has {other}s, and replies are asked about text and images")
    return [each.value for each in media]


class Answers:
    """The file of answers. A context that holds it; one process at a time."""

    def __init__(self, path: Path, given: Path, settings: Mapping[str, Any]) -> None:
        """Answer the rows of the file `given` under these settings."""
        self.path, self.given, self.settings = path, given, dict(settings)
        self.folder = path.with_name(f"{path.name}.state")
        self._lock = OutputLock(self.folder)
        self._file = -1
        self.done = 0

    def __enter__(self) -> Self:
        """Take what an earlier process wrote: `done` rows have answers. Raises BusyError where it answers something else."""
        self._lock.__enter__()
        try:
            self._same()
            self.done, whole = self._read()
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o644)
            os.ftruncate(self._file, whole)  # a line that a killed process began
            os.lseek(self._file, 0, os.SEEK_END)
        except BaseException:
            self._lock.__exit__()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Have what was written on the disk, and let go of it."""
        os.fsync(self._file)
        os.close(self._file)
        self._lock.__exit__()

    def write(self, row: Row, answer: Mapping[str, Any]) -> None:
        """Append the answer to the next row, in one piece."""
        line = json.dumps({"row": row.number, "input": row.digest, **answer}, ensure_ascii=False).encode() + b"\n"
        while line:
            line = line[os.write(self._file, line) :]
        self.done += 1

    def _same(self) -> None:
        """Refuse to go on with answers that were made otherwise."""
        file = self.folder / SETTINGS
        before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
        if before is None and self.path.exists() and self.path.stat().st_size:
            raise BusyError("is there, and not of this command", where=str(self.path), fix="name another `--output`")
        if before is None:
            write_atomically(file, json.dumps(self.settings, indent=2, sort_keys=True))
        elif differing := [key for key in {*before, *self.settings} if before.get(key) != self.settings.get(key)]:
            key = min(differing)
            why = f"holds answers made with {before.get(key)!r}, not {self.settings.get(key)!r}"
            fix = f"name another `--output`, or remove {self.path} and {self.folder}"
            raise BusyError([Problem(why, str(self.path), key, fix)])

    def _read(self) -> tuple[int, int]:
        """Return how many rows have answers, and how many bytes those have. Raises BusyError where the rows are others."""
        if not self.path.exists():
            return 0, 0
        number = whole = 0
        with self.path.open("rb") as file, self.given.open("rb") as given:
            expected = (digest(line) for line in given if line.strip())
            for line in file:
                try:
                    found = json.loads(line) if line.endswith(b"\n") else None
                except ValueError:
                    found = None
                if not isinstance(found, dict) or found.get("row") != number:
                    break
                if found.get("input") != next(expected, None):
                    why = f"answers another row {number} than the one in {self.given}"
                    raise BusyError(why, where=str(self.path), fix="name another `--output`")
                number, whole = number + 1, whole + len(line)
        return number, whole
