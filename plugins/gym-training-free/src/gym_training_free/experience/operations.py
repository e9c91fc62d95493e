"""Operations on a library: read from what a model wrote, checked against a schema, made one plan of, and applied.

The same rules hold whoever proposed a plan: DELETE wins over UPDATE and UPDATE over ADD, an unknown id to update is added, and
what says the same as another experience is merged with it. No model is asked here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError, field_validator

from gym_core.component import Config
from gym_training_free.experience.leak_guard import markup
from gym_training_free.experience.library import Experience, ExperienceLibrary
from gym_training_free.experience.similarity import alike

NAMES = {"MODIFY": "UPDATE", "EDIT": "UPDATE", "REMOVE": "DELETE", "KEEP": "NONE", "NOOP": "NONE"}
TRIES = 100  #: places in a reply where JSON may begin; each costs what lies behind it
LETTERS = 16  #: most of a word, on average: where there are no spaces, a text of any length is one
_OPENING = re.compile(r'\[\s*[{\]]|\{\s*"')
_NUMBER = re.compile(r"[Ee]?([1-9][0-9]{0,8})")  #: of an experience, however a model writes it
_FENCE = re.compile(r"```(?:json)?[^\S\n]*\n(.*?)```", re.DOTALL)


class Operation(Config):
    """One change of a library, as a model proposes it."""

    operation: Literal["ADD", "UPDATE", "DELETE", "NONE"]
    """What to do."""
    id: str | None = None
    """Experience that is updated or deleted."""
    content: str = ""
    """The new text; nothing for DELETE and NONE."""
    tags: Annotated[tuple[Annotated[str, Field(max_length=32)], ...], Field(max_length=5)] = ()
    """What it is about, for whoever reads the library; no model is shown it."""
    sources: tuple[str, ...] = ()
    """Ids of the questions that taught it; a model does not say them."""

    @field_validator("operation", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        return NAMES.get(value.strip().upper(), value.strip().upper()) if isinstance(value, str) else value

    @field_validator("id", mode="before")
    @classmethod
    def _identity(cls, value: Any) -> Any:
        text = (
            str(value).strip().strip("[].") if isinstance(value, str | int) and not isinstance(value, bool) else value
        )
        number = _NUMBER.fullmatch(text) if isinstance(text, str) else None
        return f"E{number[1]}" if number else text or None

    @field_validator("content", mode="before")
    @classmethod
    def _line(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return "" if value is None else value
        return " ".join(value.encode("utf-8", "replace").decode().split())  # half a pair of surrogates is no text

    @field_validator("tags", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            return () if value is None else value
        return [one for one in value if not isinstance(one, str) or (one.strip() and one.isprintable())]


@dataclass(frozen=True)
class Change:
    """What became of an operation."""

    operation: str
    id: str | None
    before: str
    after: str
    sources: tuple[str, ...]
    applied: bool
    why: str = ""  #: where it was not applied, or as something else than it was proposed

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self) | {"sources": list(self.sources)}


@dataclass(frozen=True)
class Limits:
    """How large a library may be."""

    experiences: int = 64
    words: int = 32  #: of one
    tokens: int | None = None  #: of all together, counted as a quarter of their bytes

    def exceeded(self, listed: Sequence[Experience]) -> bool:
        """Whether these are too many."""
        size = sum(len(f"[{one.id}] {one.text}\n".encode()) for one in listed) / 4
        return len(listed) > self.experiences or (self.tokens is not None and size > self.tokens)


_LIST = TypeAdapter(list[Operation])


def parse(text: str) -> list[Operation]:
    """Return the operations that a model wrote: the last JSON list of its text. Raises ValueError that says what is wrong."""
    found = _json(text)
    if isinstance(found, dict) and len(found) == 1:  # {"operations": [...]}
        found = next(iter(found.values()))
    if isinstance(found, list):  # keys that it adds, such as a reason, mean nothing here; sources are not its to say
        known = ("operation", "id", "content", "tags")
        found = [{k: one[k] for k in known if k in one} if isinstance(one, dict) else one for one in found]
    try:
        return _LIST.validate_python(found)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"])) or "the list"
        raise ValueError(f"{where}: {first['msg']}") from None


def fault(operation: Operation, limits: Limits) -> str:
    """Return what is wrong with an operation, whatever the library holds; a model may mend it."""
    if operation.operation == "NONE" or operation.operation == "DELETE":
        return "" if operation.operation == "NONE" or operation.id else "DELETE names no id"
    if not operation.content:
        return f"{operation.operation} has no content"
    if (count := len(operation.content.split())) > limits.words:
        return f"it has {count} words, and {limits.words} are the most"
    if (count := len(operation.content)) > LETTERS * limits.words:
        return f"it has {count} letters, and {LETTERS * limits.words} are the most"
    return ""


def apply(
    library: ExperienceLibrary,
    operations: Sequence[Operation],
    step: int,
    limits: Limits,
    leaks: Callable[[Operation], str] = lambda operation: "",
) -> tuple[ExperienceLibrary, list[Change]]:
    """Return the library after these operations, and what became of each, in the order of what was done.

    `leaks` says what the text of an operation gives away, or nothing.
    """
    work = _Work(library, step, limits, leaks)
    sound = [operation for operation in operations if operation.operation != "NONE" and work.sound(operation)]
    for name, act in (("DELETE", work.delete), ("UPDATE", work.update), ("ADD", work.add)):
        for operation in sound:
            if operation.operation == name:
                act(operation)
    return work.finished(), work.changes


class _Work:
    """A library while operations are applied to it."""

    def __init__(
        self, library: ExperienceLibrary, step: int, limits: Limits, leaks: Callable[[Operation], str]
    ) -> None:
        self.library, self.step, self.limits, self.leaks = library, step, limits, leaks
        self.now = {one.id: one for one in library}
        self.next_id = library.next_id
        self.deleted: set[str] = set()
        self.updated: set[str] = set()
        self.changes: list[Change] = []

    def sound(self, operation: Operation) -> bool:
        """Whether an operation may be carried out; notes why not."""
        text = operation.content if operation.operation != "DELETE" else ""
        why = fault(operation, self.limits) or (text and (markup(text) or self.leaks(operation)))
        if why:
            self.note(operation, applied=False, why=why)
        return not why

    def delete(self, operation: Operation) -> None:
        assert operation.id is not None
        if operation.id in self.deleted:
            self.note(operation, applied=False, why="it is deleted already")
        elif operation.id not in self.now:
            self.note(operation, applied=False, why="there is no experience of this id")
        else:
            self.note(operation, before=self.now.pop(operation.id).text)
            self.deleted.add(operation.id)

    def update(self, operation: Operation) -> None:
        identity = operation.id
        if identity in self.deleted:
            self.note(operation, applied=False, why="a DELETE of this id wins")
        elif identity not in self.now:
            self.add(operation, why="there is no experience of this id, so it is added")
        elif identity in self.updated:
            self.note(operation, applied=False, why="an earlier UPDATE of this id wins")
        elif twin := self.twin(operation.content, beside=identity):
            self.note(operation, applied=False, why=f"{twin.id} says the same")
        else:
            assert identity is not None
            old = self.now[identity]
            sources = tuple(dict.fromkeys((*old.sources, *operation.sources)))
            tags = operation.tags or old.tags
            self.now[identity] = replace(old, text=operation.content, tags=tags, updated=self.step, sources=sources)
            self.updated.add(identity)
            self.note(operation, before=old.text)

    def add(self, operation: Operation, why: str = "") -> None:
        if twin := self.twin(operation.content):
            sources = tuple(dict.fromkeys((*twin.sources, *operation.sources)))
            self.now[twin.id] = replace(twin, sources=sources)
            self.note(operation, applied=False, why=f"{twin.id} says the same")
            return
        identity, self.next_id = f"E{self.next_id}", self.next_id + 1
        self.now[identity] = Experience(
            identity, operation.content, operation.tags, created=self.step, updated=self.step, sources=operation.sources
        )
        self.note(operation.model_copy(update={"operation": "ADD", "id": identity}), why=why)

    def twin(self, text: str, beside: str | None = None) -> Experience | None:
        """Return another experience that says the same."""
        return next((one for one in self.now.values() if one.id != beside and alike(one.text, text)), None)

    def note(self, operation: Operation, applied: bool = True, before: str = "", why: str = "") -> None:
        made = (operation.operation, operation.id, before, operation.content, operation.sources, applied, why)
        self.changes.append(Change(*made))

    def finished(self) -> ExperienceLibrary:
        """Return the library, with room made: what gained least goes, the oldest first; what is new stays if it can."""
        while self.limits.exceeded(list(self.now.values())):
            old = [one for one in self.now.values() if one.updated != self.step] or list(self.now.values())
            least = min(old, key=lambda one: (one.uplift or 0.0, one.updated, int(one.id[1:])))
            del self.now[least.id]
            room = "there is room for no more, and it gained least"
            self.changes.append(Change("DELETE", least.id, least.text, "", (), True, room))
        listed = tuple(sorted(self.now.values(), key=lambda one: int(one.id[1:])))
        return replace(self.library, experiences=listed, next_id=self.next_id)


def _json(text: str) -> Any:
    """Return the last JSON of a text, of its last fence where that holds some. Raises ValueError where there is none."""
    fenced = _FENCE.findall(text)
    for candidate in (*reversed(fenced), text):
        listed, place = list[Any](), 0
        for _ in range(TRIES):
            if not (opening := _OPENING.search(candidate, place)):
                break
            try:
                found, place = json.JSONDecoder().raw_decode(candidate, opening.start())
            except (ValueError, RecursionError):
                place = opening.start() + 1
                continue
            if isinstance(found, dict) or (isinstance(found, list) and all(isinstance(one, dict) for one in found)):
                listed.append(found)
        if listed:  # a draft may stand before it, and an example behind it
            return next((found for found in reversed(listed) if isinstance(found, list)), listed[-1])
    raise ValueError("it holds no JSON list of operations")
