"""Whether a `target` leads somewhere, read from its source: importing it may take seconds, and torch."""

from __future__ import annotations

import ast
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path

ANY = frozenset({"*", "__getattr__"})  #: names that stand for all others


def exists(reference: str) -> bool:
    """Whether `module:name` is there, without importing the module; true where there is no source to read it from."""
    module, _, path = reference.partition(":")
    return path.partition(".")[0] in (found := names(module)) or bool(path and found & ANY)


@cache
def names(module: str) -> frozenset[str]:
    """Return the names that a module sets anywhere in it; `*` where its source does not tell."""
    spec = _located(module)
    if spec is None:
        return frozenset()
    if not spec.origin or not spec.origin.endswith(".py"):
        return ANY
    found: set[str] = set()
    for node in ast.walk(ast.parse(Path(spec.origin).read_bytes())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).partition(".")[0])
    return frozenset(found)


def _located(module: str) -> ModuleSpec | None:
    """Find a module; unlike `find_spec`, import no package around it."""
    top, *below = module.split(".")
    try:
        spec = find_spec(top)
        for number, _ in enumerate(below, 1):
            if spec is None or spec.submodule_search_locations is None:
                return None
            spec = PathFinder.find_spec(".".join([top, *below[:number]]), [*spec.submodule_search_locations])
    except (ImportError, ValueError):
        return None
    return spec
