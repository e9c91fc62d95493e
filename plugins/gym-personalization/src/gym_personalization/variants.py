"""The variants of all users on disk: a run for each version of each user, and a store of what is served.

OUTPUT/users/USER/1/...   as `gym train` leaves a run: run.json, metrics.jsonl, model/
OUTPUT/users/USER/2/...   what it became when it went on with new data
OUTPUT/users/USER/data-1.sha256   what names the rows that version 1 learnt from; data-1.jsonl has those that came in no file
OUTPUT/shared/   files of tokenizers, of which each run has a hard link
OUTPUT/index.sqlite, files/, open/   the store that `gym variants` looks at (`gym_bitdelta.store`): what is in it is served
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gym_bitdelta.quantizer import EVIDENCE
from gym_bitdelta.store import NOT_EVALUATED, VariantStore
from gym_bitdelta.store import Variant as Stored
from gym_bitdelta.store.content import hashed
from gym_bitdelta.store.evidence_check import MEASURED, check_artifact
from gym_bitdelta.store.record import sha256
from gym_core import Artifact, BusyError, DataError, GymError, RecipeError, cache_dir
from gym_core.files import BUILDING, remove, write_atomically
from gym_core.record import RunRecord
from gym_data.cache_eviction import forget
from gym_data.location import lasting, locate
from gym_personalization.users import checked_name, folder_of, user_of
from gym_torch.checkpoints.base_fingerprint import check_base
from gym_torch.checkpoints.base_model import base_of
from gym_torch.checkpoints.tokenizer_files import BESIDE

STATE = "state.safetensors"  #: in the directory of a run, where a user stands who is not in training


@dataclass(frozen=True)
class Variant:
    """The model of one user, as far as it differs from the base."""

    user: str
    version: int
    output: Path  #: directory of its run
    trained: Artifact  #: the adapter
    artifact: Artifact  #: what is served: what a quantizer made of it, or the adapter

    @property
    def bytes(self) -> int:
        """Bytes of the weights that are served."""
        return sum(path.stat().st_size for path in self.artifact.path.rglob("*.safetensors"))

    @property
    def safety(self) -> Any:
        """What was measured of its safety when it was made, or `not evaluated`."""
        return self.artifact.details.get("safety", NOT_EVALUATED)


class Variants:
    """The folder of all users."""

    def __init__(self, output: Path) -> None:
        """Take a folder, which need not exist yet."""
        self.output = output

    @cached_property
    def store(self) -> VariantStore:
        """What is served. Raises GymError where the disk does not take it, or its index is damaged."""
        return VariantStore(self.output)

    def close(self) -> None:
        """Let go of what is open in the store."""
        if "store" in vars(self):
            self.store.close()

    def folder(self, user: str) -> Path:
        """Return the folder of a user. Raises RecipeError for a name that is none."""
        return self.output / "users" / folder_of(checked_name(user))

    def users(self) -> Iterator[str]:
        """Yield the users who have a folder, in order."""
        if (self.output / "users").is_dir():
            yield from sorted(user_of(path.name) for path in (self.output / "users").iterdir() if path.is_dir())

    def check_same_base(self, model: str | Mapping[str, Any]) -> None:
        """Raise RecipeError where a variant here belongs to another base than this one, or section `model`: all have the same."""
        told = model if isinstance(model, Mapping) else {"path": model}
        base = str(told.get("path", ""))
        each = (self.at(user, version) for user in self.users() for version in _versions(self.folder(user)))
        found = next((one.artifact for one in each if one is not None and one.artifact.kind != "model"), None)
        if found is None or not base or found.base == lasting(base):
            return
        given = locate(base, told.get("revision"), key="base_model")
        try:
            check_base(found, given)
        except GymError as error:
            raise RecipeError(
                f"the variants here belong to the base {found.base}, and not to {base}",
                where=str(self.output),
                key="base_model",
                fix="name their base, or another `output`",
            ) from error

    def at(self, user: str, version: int) -> Variant | None:
        """Return a version of a user as its run left it; None where it is not trained, or not compressed where that was asked."""
        output = self.folder(user) / str(version)
        record = RunRecord(output / "run.json").read()
        if record.get("status") != "finished" or not record.get("artifact"):
            return None
        trained, made = (Artifact.from_json(record[key], output) for key in ("trained", "artifact"))
        return Variant(user, version, output, trained, made)

    def publish(self, user: str, version: int) -> Variant:
        """Put a finished version of a user into the store, with what was measured; one that is there stays as it is."""
        found = self.at(user, version)
        assert found is not None
        check_base(found.trained, base_of(found.trained))  # which may have changed since
        share(found.trained.path, self.output / "shared")
        record, before = RunRecord(found.output / "run.json"), self._in_store(user)
        if record.read().get("stored") in {each.id for each in before}:
            return found
        mine = {(path.name, hashed(path)) for path in found.artifact.path.glob("*.safetensors")}
        stored = before[-1] if before else None  # it is this where a process was killed before it wrote that down
        check_artifact(found.artifact)
        if stored is None or not mine <= {(file.name, file.sha256) for file in stored.files}:
            put = self.store.update if before else self.store.create
            stored = put(user, found.artifact, **_measured(found.artifact))
        record.update(stored=stored.id)
        return found

    def served(self, user: str) -> Variant:
        """Return the version of a user that is served. Raises RecipeError where there is none."""
        found = self.newest(user)
        if found is None:
            why = f"user `{user}` has no variant"
            raise RecipeError(why, where=str(self.output), key="user_id", fix="create it first")
        return found

    def newest(self, user: str) -> Variant | None:
        """Return the same; None where there is none."""
        folder, ids = self.folder(user), {each.id for each in self._in_store(user)}
        for version in sorted(_versions(folder), reverse=True):
            found = self.at(user, version)
            if found is not None and RunRecord(found.output / "run.json").read().get("stored") in ids:
                return found
        return None

    def remove(self, user: str) -> None:
        """Remove all that there is of a user: what is served, every version, and the rows, also those in the token cache.

        The folder goes last: it says what they are called there.
        """
        folder = self.folder(user)
        there = bool(self._in_store(user))
        if there:
            self.store.remove(user)
        if not there and not folder.is_dir():
            raise RecipeError(f"user `{user}` has no variant", where=str(self.output), key="user_id")
        forget(
            cache_dir() / "tokens", {name for version in _versions(folder) for name in _sources(folder / str(version))}
        )
        remove(folder)

    def keep_rows(self, user: str, version: int, rows: Iterable[Mapping[str, Any]]) -> Path:
        """Write the rows that a version learns from beside it.

        Raises DataError for rows that no file can hold, BusyError where it learns from others already.
        """
        path = self.folder(user) / f"data-{version}.jsonl"
        text = _text(user, rows)
        self.learns_from(user, version, sha256(text))
        write_atomically(path, text)
        return path.resolve()

    def learnt(self, variant: Variant, rows: Iterable[Mapping[str, Any]] | Path) -> bool:
        """Whether these are the rows that a version learnt from. Raises DataError for rows that no file can hold."""
        path, user = self.folder(variant.user) / f"data-{variant.version}.sha256", variant.user
        name = hashed(rows) if isinstance(rows, Path) else sha256(_text(user, rows))
        return path.is_file() and path.read_text(encoding="utf-8").strip() == name

    def learns_from(self, user: str, version: int, rows: str) -> None:
        """Write down what names the rows that a version learns from. Raises BusyError where it learns from others already.

        A version that nobody is served by is no hindrance: one that its quantizer refused, or that was taken out of the store.
        """
        path, run = self.folder(user) / f"data-{version}.sha256", self.folder(user) / str(version)
        record = RunRecord(run / "run.json").read()
        learnt = (run / STATE).exists() or record.get("status") == "finished"
        if learnt and not (path.is_file() and path.read_text(encoding="utf-8").strip() == rows):
            out = record.get("stored") and record["stored"] not in {each.id for each in self._in_store(user)}
            if not record.get("refused") and not out:
                raise BusyError(
                    f"user `{user}` has a version {version} that learns from other rows",
                    where=str(run),
                    key="user_id",
                    fix="`gym personalize --update` goes on from it with these; to begin anew remove the folder of the user",
                )
            for each in sorted((number for number in _versions(run.parent) if number >= version), reverse=True):
                remove(run.parent / str(each))  # later ones went on from this one
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, rows + "\n")

    def _in_store(self, user: str) -> list[Stored]:
        """Return the versions of a user in the store, the oldest first."""
        with self.store.index.reading() as connection:
            rows = self.store.index.rows(connection, user)
        return [self.store.index.parsed(row) for row in rows]


def share(model: Path, folder: Path) -> None:
    """Have the tokenizer of a model on the disk once for all models that have the same; links take the place of copies.

    They may only be read, for others have them too. Where there are no hard links, copies stay.
    """
    for file in sorted({file for pattern in BESIDE for file in model.glob(pattern)}):
        if file.stat().st_nlink > 1 or file.is_symlink():
            continue
        digest = hashed(file)
        kept, building = folder / digest, file.with_name(f".{file.name}{BUILDING}")
        with suppress(OSError):
            if not kept.is_file():
                folder.mkdir(parents=True, exist_ok=True)
                file.chmod(0o444)
                kept.hardlink_to(file)
            elif hashed(kept) == digest:
                building.hardlink_to(kept)
                building.replace(file)
        building.unlink(missing_ok=True)


@contextmanager
def disk_errors(where: Path) -> Iterator[None]:
    """Raise GymError where the disk does not take what the block writes, or does not give what it reads."""
    try:
        yield
    except OSError as error:
        fix = "make room, or see to what it says, and do the same again: it goes on from what is whole"
        raise GymError(f"the disk does not take it: {error.strerror or error}", where=str(where), fix=fix) from error


def _measured(artifact: Artifact) -> dict[str, Any]:
    """Return what a quantizer measured of what it made; what it measured of another file counts for nothing."""
    path = artifact.path / EVIDENCE
    told = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    mine = told.get(MEASURED) is not None and told[MEASURED] == artifact.details.get(MEASURED)
    if not mine or not told.get("holdout"):
        return {"quality": NOT_EVALUATED}
    return {"quality": told["holdout"] | {"holdout_of": told["samples"]["holdout_of"]}}


def _text(user: str, rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as the file of a user. Raises DataError for rows that no file can hold."""
    try:
        text = "".join(json.dumps(dict(row), ensure_ascii=False) + "\n" for row in rows)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:  # a lone surrogate is a ValueError
        fix = "give rows of text, numbers, lists and mappings"
        raise DataError(f"a row of user `{user}` is no plain data: {error}", key="data", fix=fix) from None
    return text


def _sources(run: Path) -> list[str]:
    """Return the files that a run reads its samples from."""
    data = RunRecord(run / "run.json").read().get("recipe", {}).get("data", {})
    return [str(each.get("path")) for each in data.get("sources", ())]


def _versions(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.glob("*") if path.name.isdigit()] if folder.is_dir() else []
