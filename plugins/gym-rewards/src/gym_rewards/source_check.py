"""Where a function of the user stands, found without running anything of it: what a recipe can be checked for."""

from __future__ import annotations

import ast
import os
from importlib.util import find_spec
from pathlib import Path


def located(reference: str, folder: Path) -> str:
    """Return `module:function` or `file.py:function`, the file as seen from where the command runs.

    A relative path starts in `folder`. Raises ValueError where there is no such file, module or function.
    """
    where, _, name = reference.rpartition(":")
    if not where.endswith(".py"):
        if find_spec(where.partition(".")[0]) is None:
            raise ValueError(f"there is no module `{where}`; a file is written `file.py:{name}`")
        return reference
    path = Path(where).expanduser()
    if not path.is_absolute():
        path = Path(os.path.relpath(folder / path))
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; a relative path starts at the recipe") from None
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"{path} is not Python: {error}") from None
    names = _names(tree)
    if "*" not in names and name not in names:
        raise ValueError(f"{path} defines no `{name}`")
    return f"{path}:{name}"


def _names(tree: ast.Module) -> set[str]:
    """Return every name that a file binds somewhere; `*` where it takes all of another module."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).partition(".")[0])
    return found
