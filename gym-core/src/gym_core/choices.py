"""Choices of the user in `gym.toml`: disabled plugins, and the distribution of a name that several provide.

    [plugins]
    gym-foo = false                     # nothing of this distribution is used
    "gym-foo/adamw" = false             # this component of it is not
    "optimizers/adamw" = "gym-optim"    # the bare name means this distribution's

The project's file is the nearest `gym.toml`, or `pyproject.toml` with `[tool.gym.plugins]`, from the working directory upwards;
it takes precedence over the user's, `~/.config/gym/gym.toml`. Neither is part of a run, which records the resolved components.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from gym_core.errors import RecipeError
from gym_core.metadata import canonical, read_file

TABLES = {"gym.toml": "plugins", "pyproject.toml": "tool.gym.plugins"}


class Choices(NamedTuple):
    """The value of each entry, and the file that has it."""

    said: dict[str, bool | str]
    files: dict[str, str]

    def disabled(self, dist: str, name: str) -> str:
        """Return the file that disables this component, or an empty string."""
        key = next((key for key in (f"{dist}/{name}", dist) if isinstance(self.said.get(key), bool)), "")
        return "" if self.said.get(key, True) else self.files[key]

    def origin(self, kind: str, name: str) -> str:
        """Return the distribution chosen for a bare name, or an empty string."""
        said = self.said.get(f"{kind}/{name}")
        return canonical(said) if isinstance(said, str) else ""


def user_file() -> str:
    """Return the path of the user's file."""
    return os.path.join(os.path.expanduser(os.environ.get("XDG_CONFIG_HOME") or "~/.config"), "gym", "gym.toml")


def project_file() -> str:
    """Return the file of the project around the working directory, or an empty string."""
    folder, inner = os.path.abspath("."), ""
    while folder != inner:
        for name, table in TABLES.items():
            path = os.path.join(folder, name)
            if os.path.isfile(path) and (name == "gym.toml" or f"[{table}]" in read_text(path)):
                return path
        folder, inner = os.path.dirname(folder), folder
    return ""


def read_choices() -> Choices:
    """Read both files. Raises RecipeError for an invalid entry."""
    choices = Choices({}, {})
    files = filter(None, (user_file(), project_file()))
    for path, key, value in ((file, *said) for file in files for said in _table(file).items()):
        fits = "/" in key if isinstance(value, str) else isinstance(value, bool)
        if not fits:
            fix = '`DISTRIBUTION = false` disables, `"KIND/NAME" = "DISTRIBUTION"` chooses'
            raise RecipeError("cannot be followed", where=path, key=f"{TABLES[os.path.basename(path)]}.{key}", fix=fix)
        head, slash, name = key.partition("/")
        key = key if isinstance(value, str) else canonical(head) + slash + name
        choices.said[key], choices.files[key] = value, path
    return choices


def read_text(path: str) -> str:
    """Return what is in a file of choices, empty where there is none. Raises RecipeError where it cannot be read."""
    try:
        return read_file(path).decode("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"cannot be read: {error}", where=path, fix="mend it, or move it away") from None


def _table(path: str) -> dict[str, Any]:
    if not (text := read_text(path)):
        return {}
    import tomllib  # where nothing was chosen, listing does not pay for it

    try:
        found = tomllib.loads(text)
        for part in TABLES[os.path.basename(path)].split("."):
            found = found.get(part, {})
        return dict(found)
    except (tomllib.TOMLDecodeError, AttributeError, TypeError, ValueError) as error:
        raise RecipeError(f"is no valid TOML: {error}", where=path, fix="mend it, or move it away") from None
