"""Calls that are JSON: one object for each call, or a list of them, between marks."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gym_data.chat.call_forms import ARGUMENTS, NAMES, Brackets, Call, Function, Read, Writes, literal, objects, parsed

BEGUN = re.compile(r"\s*([\[{]|$)")  #: what may yet become a call
GUIDED = {"whitespace_flexible": False}  #: a model could write space for ever


@dataclass(frozen=True)
class CallFormat:
    """How such calls are written."""

    start: str  #: before the JSON, space included; none but space where an answer is a call by being such JSON
    end: str  #: behind it, space included
    name: str = "name"  #: key of the function's name
    arguments: str = "arguments"  #: key of its arguments
    listed: bool = False  #: whether calls are items of a list
    tokens: tuple[tuple[str, int], ...] = ()  #: added tokens that stand in the marks, with their ids
    again: str = ""

    @property
    def mark(self) -> str:
        """What begins a call."""
        return self.start.strip()

    @property
    def marks(self) -> str:
        """All marks."""
        return self.start + self.end

    def with_tokens(self, tokens: tuple[tuple[str, int], ...]) -> CallFormat:
        """Return it with the tokens of a vocabulary."""
        return replace(self, tokens=tokens)

    def reader(self, schemas: Mapping[str, Mapping[str, Any]]) -> JsonReader:
        """Return what reads a call; JSON says by itself what arguments are."""
        return JsonReader(self)

    def lark(self, functions: Sequence[Function]) -> str:
        """Return a grammar of one call: the schema of a call, with those of the functions beside it."""
        schemas = [
            {
                "type": "object",
                "properties": {self.name: {"const": name}, self.arguments: {"$ref": _at(number)}},
                "required": [self.name, self.arguments],
                "additionalProperties": False,
            }
            for number, (name, _) in enumerate(functions)
        ]
        one = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
        whole = {"type": "array", "items": one, "minItems": 1, "maxItems": 1} if self.listed else one
        placed = {str(number): _placed(schema, number) for number, (_, schema) in enumerate(functions)}
        whole = {**whole, "$defs": placed, "x-guidance": GUIDED}
        parts = [literal(self.start, self.tokens), f"%json {json.dumps(whole)}", literal(self.end, self.tokens)]
        return f"start: {' '.join(part for part in parts if part)}\n"


class JsonReader:
    """Reads JSON that is a call, or a list of calls."""

    def __init__(self, form: CallFormat) -> None:
        """Begin behind the mark."""
        self._form, self._brackets = form, Brackets()

    def read(self, text: str, end: bool) -> Read | None:
        """Return the calls; None where more has to come."""
        until = self._brackets.end(text)
        if until is None:
            return None if not end and BEGUN.match(text) else Read(())
        found = parsed(text[:until])
        given = found if isinstance(found, list) else [found]
        calls = [call for each in given if (call := self._call(each)) is not None]
        return Read(calls if len(calls) == len(given) else (), until)

    def _call(self, found: Any) -> Call | None:
        if not isinstance(found, dict) or not isinstance(name := found.get(self._form.name), str):
            return None
        given = found.get(self._form.arguments, {})
        if not isinstance(given, dict | str):
            return None
        return Call(name, given if isinstance(given, str) else json.dumps(given, ensure_ascii=False))


def json_calls(writes: Writes) -> CallFormat | None:
    """Return how a template writes calls as JSON; None where it does not."""
    written = writes(NAMES[:1], ARGUMENTS)
    for found, at, until in objects(written):
        listed = isinstance(found, list)
        keys = _keys(found[0] if listed and found else found)
        if keys:
            return CallFormat(written[:at], written[until:], *keys, listed)
    return None


def _keys(call: Any) -> tuple[str, str] | None:
    """Return under which keys an object holds the name and the arguments of the call that is tried."""
    if not isinstance(call, dict):
        return None
    name = next((key for key, value in call.items() if value == NAMES[0]), None)
    arguments = next((key for key, value in call.items() if value in (ARGUMENTS, json.dumps(ARGUMENTS))), None)
    return (name, arguments) if name is not None and arguments is not None else None


def _at(number: int) -> str:
    """Return where the schema of a function stands in the whole."""
    return f"#/$defs/{number}"


def _placed(schema: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return the schema of a function with references that lead to its own definitions: others have some of the same names."""

    def moved(value: Any) -> Any:
        if isinstance(value, list):
            return [moved(each) for each in value]
        if not isinstance(value, Mapping):
            return value
        found = {key: moved(each) for key, each in value.items()}
        reference = value.get("$ref")
        if isinstance(reference, str) and reference.startswith("#"):
            found["$ref"] = _at(number) + reference.removeprefix("#")
        return found

    found: dict[str, Any] = moved(schema)
    found.pop("$id", None)  # references would be read from there
    return found
