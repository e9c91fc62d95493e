"""Questions: what is asked, the row that it comes from, and which of them only measure."""

from __future__ import annotations

import hashlib
import json
import logging
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gym_core.errors import DataError
from gym_core.files import expanded
from gym_training_free.endpoint.chat import Message
from gym_training_free.experience.library import ExperienceLibrary
from gym_training_free.prompting import shown

_log = logging.getLogger(__name__)
COLUMNS = ("messages", "prompt", "question", "problem", "instruction", "query")


@dataclass(frozen=True)
class Question:
    """One question."""

    id: str  #: a hash of what is asked, and its number among those that ask the same
    messages: Sequence[Message]
    row: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """What all questions have in common that ask the same."""
        return kind_of(self.id)

    @property
    def text(self) -> str:
        """What is asked, as one text."""
        return shown(self.messages)


def kind_of(identity: str) -> str:
    """Return the part of an id that all questions have in common that ask the same."""
    return identity.partition("/")[0]


def taught(library: ExperienceLibrary, questions: Iterable[Question]) -> int:
    """Return how many of some questions an experience of a library comes from: what they show of it is no evidence."""
    return len({one.kind for one in questions} & {kind_of(each) for one in library for each in one.sources})


@dataclass(frozen=True)
class Questions:
    """Those to learn from, and those held out."""

    train: Sequence[Question]
    held_out: Sequence[Question] = ()

    def fingerprint(self) -> str:
        """Return a hash of everything that is asked, and of the rows."""
        told = [[[list(one.messages), dict(one.row)] for one in part] for part in (self.train, self.held_out)]
        return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:16]


def read(path: Path) -> list[Any]:
    """Return the rows of a file of JSON lines. Raises DataError."""
    try:
        lines = expanded(path).read_text(encoding="utf-8-sig").split("\n")  # a string may hold other ends of lines
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot be read: {error}", where=str(path), key="algorithm.dataset") from None
    rows = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except (ValueError, RecursionError):
                fix = "write one JSON object a line"
                raise DataError("is no JSON", where=f"{path}:{number}", key="algorithm.dataset", fix=fix) from None
    return rows


def asked(rows: Iterable[Any], column: str = "") -> list[tuple[Sequence[Message], Mapping[str, Any]]]:
    """Return messages and row of each row: a mapping with a column of messages or text, or a text. Raises DataError."""
    found: list[tuple[Sequence[Message], Mapping[str, Any]]] = []
    for number, row in enumerate(rows, 1):
        given: Mapping[str, Any] = row if isinstance(row, Mapping) else {"prompt": row}
        name = column or next((each for each in COLUMNS if given.get(each)), "")
        value = given.get(name)
        if isinstance(value, str) and value.strip():
            found.append(([{"role": "user", "content": value}], given))
        elif (
            isinstance(value, list | tuple)
            and value
            and all(isinstance(one, Mapping) and "role" in one for one in value)
            and any(_says(one) for one in value[: _end(value)])
        ):
            found.append(([dict(one) for one in value[: _end(value)]], given))
        else:
            fix = f"name its column in `algorithm.prompt`; by default it is one of {', '.join(COLUMNS)}"
            raise DataError(f"row {number} asks nothing: {sorted(map(str, given))}", key="algorithm.dataset", fix=fix)
    return found


def _end(messages: Sequence[Any]) -> int:
    """Return how many messages there are before the answer that a row ends with."""
    return max((place for place, one in enumerate(messages, 1) if one["role"] != "assistant"), default=0)


def _says(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    return bool(content.strip() if isinstance(content, str) else content)


def questions(
    train: Iterable[tuple[Sequence[Message], Mapping[str, Any]]],
    validation: Iterable[tuple[Sequence[Message], Mapping[str, Any]]],
    held_out: float,
    seed: int,
) -> Questions:
    """Return questions with ids, and those that are held out: `validation`, or where there are none a random part of the others.

    Equal questions stay on one side. Raises DataError where none is left to learn from.
    """
    learn, measure = _identified(train), _identified(validation)
    asked = {one.kind for one in measure}
    if both := sum(one.kind in asked for one in learn):
        _log.warning("%d questions to learn from are held out too: they only measure", both)
        learn = [one for one in learn if one.kind not in asked]
    if not measure and held_out:
        kinds = list(dict.fromkeys(one.kind for one in learn))
        wanted = int(held_out) if held_out >= 1 else round(held_out * len(kinds))
        chosen = set(random.Random(f"held out {seed}").sample(kinds, min(wanted, len(kinds))))
        measure = [one for one in learn if one.kind in chosen]
        learn = [one for one in learn if one.kind not in chosen]
    if not learn:
        raise DataError("there is no question to learn from", key="data", fix="add some, or hold out fewer")
    return Questions(learn, measure)


def _identified(found: Iterable[tuple[Sequence[Message], Mapping[str, Any]]]) -> list[Question]:
    count: dict[str, int] = {}
    made = []
    for messages, row in found:
        name = hashlib.sha256(json.dumps(list(messages), sort_keys=True, default=str).encode()).hexdigest()[:10]
        count[name] = count.get(name, 0) + 1
        made.append(Question(f"{name}/{count[name]}", messages, row))
    return made
