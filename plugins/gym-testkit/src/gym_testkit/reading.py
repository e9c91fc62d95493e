"""Which names the code of a package reads, from its text alone."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from gym_core.discovery import installed

#: What hands all options on at once, whatever their names are.
WHOLE = {"model_dump", "model_dump_json", "model_fields", "__dict__"}


@cache
def names_read(package: str) -> frozenset[str]:
    """Return the names that are read in a package, and in the modules of other plugins that it imports."""
    own = _files(package)
    brought = {package_of(entry.value) for many in installed().entries.values() for entry in many} - {package}
    others = {module for path in own for module in _read(path)[1] if package_of(module) in brought}
    return frozenset(_names(own).union(*(_names(_files(module)[:1]) for module in others)))


@cache
def hands_on(module: str) -> bool:
    """Return whether a module reads all options at once, so that it names none."""
    return not WHOLE.isdisjoint(_names(_files(module)[:1]))


def package_of(reference: str) -> str:
    """Return `package` of `package.module:name`."""
    return reference.partition(":")[0].partition(".")[0]


def _names(files: Iterable[Path]) -> set[str]:
    return {name for path in files for name in _read(path)[0]}


@cache
def _read(path: Path) -> tuple[frozenset[str], frozenset[str]]:
    """Return the attributes that a file loads and the texts that may be names; and the modules it imports."""
    names, modules = set(), set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            names.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            names.add(node.value)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
    return frozenset(names), frozenset(modules)


@cache
def _files(module: str) -> list[Path]:
    """Return the file of a module, and all below it where it is a package; none where it is no module of Python's text."""
    try:
        spec = find_spec(module)
    except ModuleNotFoundError:  # an object of a module
        spec = None
    file = [Path(spec.origin)] if spec and spec.origin and spec.origin.endswith(".py") else []
    inside = sorted(
        path for folder in (spec and spec.submodule_search_locations) or () for path in Path(folder).rglob("*.py")
    )
    return [*file, *(path for path in inside if path not in file)]
