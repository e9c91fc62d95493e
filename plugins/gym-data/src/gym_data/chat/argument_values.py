"""What a value is that was written as text: the schema of its argument says whether it is one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gym_data.chat.call_forms import parsed

WORDS = {"True": True, "False": False, "None": None, "null": None}  #: as templates of Jinja write them
TYPES: Mapping[type, frozenset[str]] = {
    str: frozenset({"string"}),
    bool: frozenset({"boolean"}),
    int: frozenset({"integer", "number"}),
    float: frozenset({"number"}),
    list: frozenset({"array"}),
    dict: frozenset({"object"}),
    type(None): frozenset({"null"}),
}


def properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schemas of the arguments that a schema names."""
    found = schema.get("properties")
    return found if isinstance(found, Mapping) else {}


def kinds(schema: Any) -> frozenset[str]:
    """Return the types that a schema allows; none where it does not say."""
    if not isinstance(schema, Mapping):
        return frozenset()
    said = schema.get("type")
    if said is not None:
        return frozenset([said] if isinstance(said, str) else said if isinstance(said, list) else ())
    if isinstance(values := schema.get("enum", [schema["const"]] if "const" in schema else None), list):
        return frozenset(kind for value in values for kind in TYPES.get(type(value), ()))
    parts = [kinds(each) for name in ("anyOf", "oneOf") for each in schema.get(name) or ()]
    return frozenset().union(*parts) if all(parts) else frozenset()


def value_of(text: str, schema: Any) -> Any:
    """Return a value: what JSON it is, unless the schema allows a text and not that."""
    allowed = kinds(schema)
    if allowed == {"string"}:
        return text
    word = text.strip()
    found = WORDS[word] if word in WORDS else parsed(word)
    if found is None and word not in WORDS:
        return text
    fits = not allowed or bool(TYPES[type(found)] & allowed)
    return text if not fits and "string" in allowed else found
