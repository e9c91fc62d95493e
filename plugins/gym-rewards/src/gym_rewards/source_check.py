"""Where a function of the user stands, found without running anything of it: what a recipe can be checked for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo

from gym_core.errors import GymError
from gym_core.files import expanded
from gym_core.targets import ANY, defined, names


def stands(reference: str, info: ValidationInfo) -> str:
    """Return a reference as the recipe means it; see `located`."""
    folder = (info.context or {}).get("folder")
    return reference if folder is None else located(reference, folder)


Reference = Annotated[str, Field(pattern=r".:."), AfterValidator(stands)]
"""An option: `package.module:name`, or `path/file.py:name`; for a relative path see `located`."""


def check_there(reference: str, key: str, fix: str) -> None:
    """Raise GymError, of this key, where nothing stands there; nothing of it is run."""
    try:
        located(reference, Path())
    except ValueError as error:
        raise GymError(str(error), key=key, fix=fix) from None


def located(reference: str, folder: Path) -> str:
    """Return `module:function` or `file.py:function`, the file as seen from where the command runs.

    A relative path starts in `folder`, that of a recipe, or, where that is no file, where the command runs, as in a recipe that
    was written by a run. Raises ValueError where there is no such file, module or function.
    """
    where, _, name = reference.rpartition(":")
    if not where.endswith(".py"):
        if not (there := set(names(where))):
            raise ValueError(f"there is no module `{where}` that can be read; a file is written `file.py:{name}`")
        if not there & {name.partition(".")[0], *ANY}:
            raise ValueError(f"{where} defines no `{name}`")
        return reference
    path = expanded(where)
    if not path.is_absolute() and ((beside := Path(os.path.relpath(folder / path))).is_file() or not path.is_file()):
        path = beside
    try:
        found = defined(path.read_bytes(), str(path))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; a relative path starts at the recipe") from None
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not Python: {error}") from None
    if not found & {name, *ANY}:
        raise ValueError(f"{path} defines no `{name}`")
    return f"{path}:{name}"
