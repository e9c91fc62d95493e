"""Checks from source whether what a component class points at exists, since importing it may take seconds and load torch."""

from __future__ import annotations

import re
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import decode_source, find_spec
from pathlib import Path
from symtable import symtable

ANY = frozenset({"*", "__getattr__"})  #: names that stand for all others
REFERENCE = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*:[A-Za-z_]\w*(?:\.\w+)*")  #: `module:name` or `module:name.attribute`


def missing(cls: type) -> tuple[str, str] | None:
    """Return name and value of the first attribute of a class, `target` or another, that refers to code which does not exist."""
    named = {name: value for each in reversed(type.mro(cls)) for name, value in vars(each).items()}
    strings = [(name, value) for name, value in named.items() if isinstance(value, str) and not name.startswith("__")]
    said = (item for item in strings if item[1] and (item[0] == "target" or REFERENCE.fullmatch(item[1])))
    return next((item for item in said if not exists(item[1])), None)


def exists(reference: str) -> bool:
    """Whether `module:name` exists, without importing the module; true where its source cannot be read."""
    module, _, path = reference.partition(":")
    return path.partition(".")[0] in (found := names(module)) or bool(path and found & ANY)


@cache
def names(module: str) -> frozenset[str]:
    """Return the names that a module defines; `*` where its source does not tell, none where it cannot be read."""
    top, *below = module.split(".")
    try:
        spec = find_spec(top)
        for number, _ in enumerate(below, 1):  # `find_spec` of the whole name would import the packages around it
            inside = spec and spec.submodule_search_locations
            spec = PathFinder.find_spec(".".join([top, *below[:number]]), [*inside]) if inside else None
        if spec is None or not spec.origin or not spec.origin.endswith(".py"):
            return ANY if spec else frozenset()
        return defined(Path(spec.origin).read_bytes(), spec.origin)
    except (ImportError, OSError, SyntaxError, ValueError, RecursionError):
        return frozenset()


def defined(source: bytes, file: str) -> frozenset[str]:
    """Return the names that the source of a module defines; with ANY where it does not tell. Raises what `compile` raises."""
    symbols = symtable(decode_source(source), file, "exec").get_symbols()
    found = {each.get_name() for each in symbols if each.is_assigned() or each.is_imported() or each.is_namespace()}
    return frozenset(found | (ANY if b"import *" in source else set()))
