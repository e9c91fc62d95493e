"""Checkpoints on disk: written atomically, verified by their hashes, and deleted only after a newer one was verified.


A checkpoint is a directory `step-00000100` with a `manifest.json` that holds size and SHA-256 of every other file.
This module only moves and hashes files; it knows nothing of their contents.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from gym_core import GymError, Run
from gym_core.files import BUILDING, replacing
from gym_core.outputlock import OutputLock

MANIFEST = "manifest.json"
PREFIX = "step-"
BEFORE = ".before"  #: ends the hidden name of a checkpoint while another of its step takes its place


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, directory: Path, keep: int, warn: Callable[[str], None]) -> None:
        """Use a directory, made when first needed. `warn` is told of every checkpoint that is refused."""
        self.directory, self.keep, self.warn = directory, keep, warn

    def save(self, step: int, write: Callable[[Path], None], best: int | None = None) -> Path:
        """Let `write(directory)` fill a new checkpoint, seal and verify it; then delete the oldest beyond `keep`.

        That of step `best` stays, however old. One that is there already for this step gives way when the new one is verified.

        Raises GymError when the disk does not take it; the checkpoints before it are then untouched.
        """
        final = self._at(step)
        left = [path.name for path in self._all()[-1:]] or ["the start"]
        with whole_or_gone(final, "the checkpoint", left[0]) as building:
            write(building)
            _seal(building, step)
            if final.exists():  # as it was before the evaluation of its step
                final.rename(self.directory / f".{final.name}{BEFORE}")
        wrong = problem(final)
        if wrong:
            raise GymError(
                f"the checkpoint does not read back as written: {wrong}",
                where=str(final),
                fix="check the disk",
            )
        shutil.rmtree(self.directory / f".{final.name}{BEFORE}", ignore_errors=True)
        for old in self._all()[: -self.keep]:
            if best is None or old != self._at(best):
                # Out of sight first: a kill in the middle must not leave a checkpoint that looks damaged.
                shutil.rmtree(old.rename(self.directory / f".{old.name}.old"))
        return final

    def at(self, step: int) -> Path:
        """Return the checkpoint of a step. Raises GymError where it is not there, or not whole."""
        path = self._at(step)
        wrong = problem(path) if path.is_dir() else "it is gone"
        if wrong:
            raise GymError(
                f"the checkpoint of step {step}, the best, is needed: {wrong}",
                where=str(path),
                fix="run the same command again: it writes what the last step left",
            )
        return path

    def holds(self, step: int) -> bool:
        """Whether the checkpoint of a step is there, and whole."""
        return not problem(self._at(step))

    def latest(self) -> Path | None:
        """Return the newest checkpoint that is whole, or None; warn of and set aside every newer one."""
        for left in [*self.directory.glob(f".{PREFIX}*{BUILDING}"), *self.directory.glob(f".{PREFIX}*.old")]:
            shutil.rmtree(left)
        for left in self.directory.glob(f".{PREFIX}*{BEFORE}"):
            final = self.directory / left.name.removeprefix(".").removesuffix(BEFORE)
            if final.exists() and not problem(final):
                shutil.rmtree(left)
            else:
                shutil.rmtree(final, ignore_errors=True)
                left.rename(final)
        for path in reversed(self._all()):
            wrong = problem(path)
            if not wrong:
                return path
            aside = _free_name(path.with_name(f"refused-{path.name}"))
            path.rename(aside)
            self.warn(f"checkpoint {path.name} is refused: {wrong}; it is kept as {aside.name}")
        return None

    def to_go_on_from(self, run: Run) -> Path | None:
        """Return what every process of a run goes on from; None for a run that begins."""
        found = run.ranks.agree(lambda: str(self.latest() or "")) if run.resuming else ""
        return Path(found) if found else None

    def _at(self, step: int) -> Path:
        return self.directory / f"{PREFIX}{step:08d}"

    def _all(self) -> list[Path]:
        """Return the checkpoints, oldest first."""
        return sorted(path for path in self.directory.glob(f"{PREFIX}*") if path.name.removeprefix(PREFIX).isdigit())


@contextmanager
def whole_or_gone(final: Path, what: str, left: str) -> Iterator[Path]:
    """Give an empty folder to fill, which takes the place of `final` (`gym_core.files.replacing`); nobody else writes it.

    Raises GymError where the disk does not take it, saying that the same command goes on from `left`.
    """
    try:
        with replacing(final, alone=True) as building:
            building.mkdir(parents=True)
            yield building
    except (OSError, SafetensorError) as error:  # safetensors reports a full disk as an error of its own
        reason = error.strerror if isinstance(error, OSError) else str(error).rpartition("error: ")[2]
        raise GymError(
            f"{what} could not be written: {reason or error}",
            where=str(final),
            fix=f"make room, or see to what it says, and run the same command again; it continues from {left}",
        ) from error


@contextmanager
def whole_by_one(final: Path, what: str, left: str) -> Iterator[Path]:
    """The same beside a run or after it, where no run holds the folder around: two processes may be told to write `final`.

    What a killed process left there is cleared away. Raises BusyError while another process writes `final`.
    """
    place = final.with_name(f".{final.name}.building")
    with OutputLock(place):
        try:
            with whole_or_gone(final, what, left) as building:
                yield building
        finally:
            shutil.rmtree(place, ignore_errors=True)


def problem(path: Path) -> str:
    """Return what is wrong with a checkpoint, naming the file; empty when every byte is as it was written."""
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        files: dict[str, tuple[int, str]] = {
            name: (entry["bytes"], entry["sha256"]) for name, entry in manifest["files"].items()
        }
        step = manifest["step"]
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} is damaged"
    if manifest.pop("seal", None) != _seal_of(manifest):
        return f"{MANIFEST} is damaged"
    if path.name != f"{PREFIX}{step:08d}":
        return f"{MANIFEST} belongs to step {step}"
    if not files:
        return "it holds nothing"
    there = {name for name in _files(path) if name != MANIFEST}
    for name, (size, digest) in files.items():
        if name not in there:
            return f"{name} is missing"
        if (path / name).stat().st_size != size:
            return f"{name} has {(path / name).stat().st_size} bytes instead of {size}"
        if _digest(path / name) != digest:
            return f"{name} is not what was written (SHA-256 differs)"
    foreign = sorted(there - files.keys())
    return f"{foreign[0]} does not belong to it" if foreign else ""


def _seal(path: Path, step: int) -> None:
    """Write down what the files are, as memory has them; that the disk has them alike is asked when all of it is there."""
    files = {}
    for name in _files(path):
        files[name] = {"bytes": (path / name).stat().st_size, "sha256": _digest(path / name)}
    manifest = {"format": 1, "step": step, "files": files}
    text = json.dumps(manifest | {"seal": _seal_of(manifest)}, indent=1)
    (path / MANIFEST).write_text(text, encoding="utf-8")


def _seal_of(manifest: dict[str, Any]) -> str:
    """Return the hash of a manifest, so that damage to it is not blamed on the files it lists."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _files(path: Path) -> Iterator[str]:
    yield from sorted(inner.relative_to(path).as_posix() for inner in path.rglob("*") if inner.is_file())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        if sys.platform == "linux":  # read what the disk holds, not what memory remembers of it
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return hashlib.file_digest(file, "sha256").hexdigest()


def _free_name(path: Path) -> Path:
    """Return the path, or the first of path.2, path.3, ... that is free."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}.{number}")
    return free
