"""Which files evidence is of: the details of an artifact name each file that was measured, with its SHA-256. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from gym_bitdelta.store.content import hashed
from gym_bitdelta.store.record import NOT_EVALUATED, StoredFile
from gym_core import Artifact, GymError

MEASURED = "measured"  #: in the details of an artifact: the SHA-256 of each file whose safety and quality were measured, by name


def check_measured(details: Mapping[str, Any], held: Callable[[str], str | None], where: str) -> None:
    """Raise GymError where evidence in the details of an artifact is not of its files.

    `held` returns the SHA-256 of a file by its name, None where it is not there. Details without evidence need name no file.
    """
    measured = details.get(MEASURED)
    if measured is None:
        if details.get("safety", NOT_EVALUATED) != NOT_EVALUATED:
            raise _unbound("its safety was measured, and nothing says on which file", where)
        return
    if not isinstance(measured, Mapping) or not measured:
        raise _unbound(f"`{MEASURED}` in its details names no file", where)
    for name, sha256 in measured.items():
        if held(name) != sha256:
            raise _unbound(
                f"`{name}` is not the file whose safety and quality were measured: its SHA-256 differs", where
            )


def check_stored(user: str, details: Mapping[str, Any], files: Iterable[StoredFile]) -> None:
    """Raise what `check_measured` does, of the variant of a user with these files."""
    held = {each.name: each.sha256 for each in files}
    check_measured(details, held.get, f"the variant of `{user}`")


def check_artifact(artifact: Artifact) -> None:
    """Raise what `check_measured` does, of an artifact whose files lie in its folder."""

    def held(name: str) -> str | None:
        path = artifact.path / name
        return hashed(path) if path.is_file() else None

    check_measured(artifact.details, held, str(artifact.path))


def of_file(path: Path) -> dict[str, str]:
    """Return what the details of an artifact say of the one file that was measured."""
    return {path.name: hashed(path)}


def _unbound(why: str, where: str) -> GymError:
    return GymError(why, where=where, fix="put the file back that was measured, or remove this and make it again")
