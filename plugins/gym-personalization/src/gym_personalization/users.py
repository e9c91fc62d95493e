"""Who the users are: what they may be called, and where their data and their variants lie. No torch here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from gym_bitdelta.store.user_id import RESERVED
from gym_core import DataError, RecipeError
from gym_core.files import expanded

LONGEST = 100  #: characters of a user's name, which is that of a folder
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._@+-]{{0,{LONGEST - 1}}}")
CASE = "="  #: in the name of a folder, before the places of the capital letters; no user is called so
#: Names that some system or this package has for other things, whatever the suffix.
_RESERVED = RESERVED | {"current", "com0", "lpt0"}
SUFFIXES = (".jsonl", ".json")  #: of the files of users in a folder
FEWEST = 2  #: rows of a user, below which there is nothing to generalize from


def checked_name(user: object) -> str:
    """Return the name of a user. Raises RecipeError where it cannot be that of a folder on every system."""
    if not isinstance(user, str) or not _NAME.fullmatch(user) or user.endswith("."):
        shown = f"{user!r:.60}" + (
            f" ({len(user):,} characters)" if isinstance(user, str) and len(user) > LONGEST else ""
        )
        raise RecipeError(
            f"{shown} is no name of a user",
            key="user_id",
            fix=f"use 1 to {LONGEST} letters, digits and . _ @ + -, beginning with a letter or digit",
        )
    if user.partition(".")[0].lower() in _RESERVED:
        raise RecipeError(f"`{user}` is reserved", key="user_id", fix="choose another, such as `user-" + user + "`")
    return user


def folder_of(user: str) -> str:
    """Return what the folder of a user is called: names that differ in case alone differ there in more than that."""
    capitals = sum(1 << place for place, letter in enumerate(user) if letter.isupper())
    return f"{user}{CASE}{capitals:x}" if capitals else user


def user_of(folder: str) -> str:
    """Return the user whose folder is called so."""
    return folder.partition(CASE)[0]


def users_in(folder: Path) -> dict[str, Path]:
    """Return the files of users in a folder by the names that they are called after, in order; the names are not checked yet.

    Raises RecipeError where there is none, DataError where two are of one user.
    """
    if not folder.is_dir():
        raise RecipeError(
            "there is no such folder", where=str(folder), key="users", fix="name one with a file for each user"
        )
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in SUFFIXES and not path.name.startswith("."):
            user = path.stem
            if user in found:
                raise DataError(f"user `{user}` has two files: {found[user].name} and {path.name}", where=str(folder))
            found[user] = path
    if not found:
        raise RecipeError(
            "no file of a user is in it", where=str(folder), key="users", fix="put USER.jsonl files there"
        )
    return found


def rows_of(user: str, data: str | Path | Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]] | Path:
    """Return the rows of a user, or the path of the file that holds them.

    Raises DataError where there are none, or so few that nothing can be learnt from them but themselves, and where the first of
    them cannot be read.
    """
    if isinstance(data, str | Path):
        path = expanded(data)
        if not path.is_file():
            raise DataError(f"there is no file of user `{user}`", where=str(path), key="data")
        try:
            _enough(user, len(list(islice(_rows_in(path), FEWEST))), str(path))
        except OSError as error:
            raise DataError(f"the file of user `{user}` cannot be read: {error}", where=str(path), key="data") from None
        return path.resolve()
    if not isinstance(data, Iterable) or isinstance(data, bytes | Mapping):
        raise DataError(
            f"the rows of user `{user}` are a {type(data).__name__}", key="data", fix="give a list of rows, or a file"
        )
    rows = list(data)
    odd = next((row for row in rows if not isinstance(row, Mapping)), None)
    if odd is not None:
        raise DataError(f"user `{user}` has a row that is a {type(odd).__name__}, and no mapping", key="data")
    _enough(user, len(rows), "")
    return rows


def is_pair(row: Mapping[str, Any]) -> bool:
    """Return whether a row shows two answers, the preferred one marked."""
    return {"chosen", "rejected"} <= row.keys()


def first_row(data: list[Mapping[str, Any]] | Path) -> Mapping[str, Any]:
    """Return the first row of what `rows_of` returned, or of any file that `gym train` reads; empty where there is none."""
    return data[0] if isinstance(data, list) else next(_rows_in(data), {})


def _rows_in(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a file as training reads them. Raises DataError where that is no file of rows, by its line."""
    from gym_data.sources.compression import kind_of
    from gym_data.sources.readers import READERS, find_files  # pyarrow takes its time

    (file,) = find_files(path)
    return iter(READERS[kind_of(file)](file))


def _enough(user: str, rows: int, where: str) -> None:
    if rows < FEWEST:
        raise DataError(
            f"user `{user}` has {rows or 'no'} row{'' if rows == 1 else 's'}, and nothing can be learnt from that",
            where=where,
            key="data",
            fix=f"collect at least {FEWEST}",
        )
