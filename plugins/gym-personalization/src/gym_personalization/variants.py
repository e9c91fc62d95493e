"""The variants of all users on disk: a folder for each user, in it a run for each version, the newest finished one counts.

OUTPUT/users/USER/1/...   as `gym train` leaves a run: run.json, metrics.jsonl, model/
OUTPUT/users/USER/2/...   what it became when it went on with new data
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gym_core import Artifact, BusyError, RecipeError
from gym_core.files import write_atomically
from gym_core.record import RunRecord
from gym_personalization.users import checked_name

STATE = "state.safetensors"  #: in the directory of a run, where a user stands who is not in training


@dataclass(frozen=True)
class Variant:
    """The model of one user, as far as it differs from the base."""

    user: str
    version: int
    output: Path  #: directory of its run
    trained: Artifact  #: the adapter
    artifact: Artifact  #: what is served: what a quantizer made of it, or the adapter
    refused: str = ""  #: why there is no compressed one, where a quantizer refused

    @property
    def bytes(self) -> int:
        """Bytes of the weights that are served."""
        return sum(path.stat().st_size for path in self.artifact.path.rglob("*.safetensors"))


class Variants:
    """The folder of all users."""

    def __init__(self, output: Path) -> None:
        """Take a folder, which need not exist yet."""
        self.output = output

    def folder(self, user: str) -> Path:
        """Return the folder of a user. Raises RecipeError for a name that is none."""
        return self.output / "users" / checked_name(user)

    def users(self) -> Iterator[str]:
        """Yield the users who have a folder, in order."""
        if (self.output / "users").is_dir():
            yield from sorted(path.name for path in (self.output / "users").iterdir() if path.is_dir())

    def latest(self, user: str) -> Variant | None:
        """Return the newest variant of a user; None where nothing is finished."""
        folder = self.folder(user)
        for version in sorted(_versions(folder), reverse=True):
            output = folder / str(version)
            record = RunRecord(output / "run.json").read()
            if record.get("status") == "finished":
                trained = Artifact.from_json(record["trained"], output)
                made = Artifact.from_json(record["artifact"], output) if record["artifact"] else trained
                problems = record.get("refused", {}).get("problems", [{}])
                return Variant(user, version, output, trained, made, problems[0].get("message", ""))
        return None

    def served(self, user: str) -> Variant:
        """Return the newest variant of a user. Raises RecipeError where there is none."""
        found = self.latest(user)
        if found is None:
            raise RecipeError(
                f"user `{user}` has no variant", where=str(self.output), key="user_id", fix="create it first"
            )
        return found

    def next_version(self, user: str) -> int:
        """Return the number of the version that is trained next, or is not finished yet."""
        found = self.latest(user)
        return found.version + 1 if found else 1

    def keep_rows(self, user: str, version: int, rows: Iterable[Mapping[str, Any]]) -> Path:
        """Write the rows that a version learns from beside it. Raises BusyError where it learns from others already."""
        path, run = self.folder(user) / f"data-{version}.jsonl", self.folder(user) / str(version)
        text = "".join(json.dumps(dict(row), ensure_ascii=False) + "\n" for row in rows)
        learnt = (run / STATE).exists() or RunRecord(run / "run.json").read().get("status") == "finished"
        if learnt and path.exists() and path.read_text(encoding="utf-8") != text:
            raise BusyError(
                f"user `{user}` has a version {version} that learns from other rows",
                where=str(path),
                key="user_id",
                fix="update the variant, or remove the user's folder",
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
        return path.resolve()


def _versions(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.glob("*") if path.name.isdigit()] if folder.is_dir() else []
