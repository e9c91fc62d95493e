"""A store of variants: one folder for all processes that write and serve.

A writer copies and hashes files aside, then moves them to their place and adds the record in one transaction: the index alone
says what there is. Whoever opens a variant links its files into a folder of its own and hashes them before it reads, so what is
updated, removed or collected meanwhile stays readable there, and a damaged file is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from gym_bitdelta.store import record
from gym_bitdelta.store.content import Content, staged
from gym_bitdelta.store.evidence_check import check_stored
from gym_bitdelta.store.index import Index, Listing
from gym_bitdelta.store.process_folders import ProcessFolders
from gym_bitdelta.store.record import NOT_EVALUATED, Variant
from gym_bitdelta.store.user_id import check_user_id
from gym_core import Artifact, BusyError, GymError
from gym_core.errors import Problem
from gym_core.files import BUILDING, remove


class Collected(NamedTuple):
    """What `gc` took away."""

    files: int
    bytes: int
    processes: int  #: dead ones that had left something


@dataclass(frozen=True)
class Opened:
    """A variant whose files were found sound, and stay where they are until it is closed."""

    variant: Variant
    path: Path  #: of the folder with its files, under their names

    @property
    def artifact(self) -> Artifact:
        """The artifact in that folder."""
        return self.variant.artifact_at(self.path)


class VariantStore:
    """Variants in a folder on a local disk. Any number of processes and threads may use it at the same time."""

    def __init__(self, root: Path, create: bool = True) -> None:
        """Open a store. Raises GymError where there is none and it may not be made, or its index is damaged."""
        self.root = root
        self.index = Index(root, create)
        self._content = Content(root)
        self._folders = ProcessFolders(root, self.index)
        self._located: dict[tuple[str, int], ExitStack] = {}  # by user and thread
        self._turn = threading.Lock()

    def __enter__(self) -> VariantStore:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of all that this process has open."""
        with self._turn:
            users = {user for user, _ in self._located}
        for user in users:
            self.release(user)
        self._folders.close()
        self.index.close()

    def create(self, user: str, artifact: Artifact, quality: Any = NOT_EVALUATED, safety: Any = None) -> Variant:
        """Store the first variant of a user: all files of an artifact, and what was measured; of `safety` by default what the
        artifact says of itself.

        Raises GymError for a user id that is none, a user who is there already, evidence that is no plain data, or a disk that
        does not take it; then nothing has changed.
        """
        return self._publish(user, artifact, quality, safety, lambda before: _must_be_new(user, before))

    def update(
        self,
        user: str,
        artifact: Artifact,
        quality: Any = NOT_EVALUATED,
        safety: Any = None,
        parent: str | None = None,
    ) -> Variant:
        """Store a new version of a user's variant; its record names the one before it, whose files go.

        `parent` is the version that it was made from. Raises what `create` does, BusyError where another one was stored since
        then, and GymError where the user has none.
        """
        return self._publish(user, artifact, quality, safety, lambda before: _must_follow(user, before, parent))

    def evaluated(self, user: str, quality: Any = None, safety: Any = None, parent: str | None = None) -> Variant:
        """Store what was measured of a user's variant as a new version with the same files; None leaves what was there.

        `parent` is the version that was measured. Raises BusyError where another one was stored since then.
        """
        with self.index.writing() as connection:
            before = _there(user, self.index.newest(connection, check_user_id(user)))
            _must_follow(user, before, parent)
            changes = {
                "quality": before.quality if quality is None else record.evidence(quality, "quality"),
                "safety": before.safety if safety is None else record.evidence(safety, "safety"),
            }
            after = before.model_copy(update={**_next(before), **changes})
            self.index.add(connection, after)
        return after

    def remove(self, user: str) -> None:
        """Remove a user's variant with its lineage and its files. Raises GymError where there is none."""
        with self.index.writing() as connection:
            files = self.index.remove(connection, check_user_id(user))
            if files is None:
                raise _missing(user)
        self._sweep(files)

    def get(self, user: str) -> Variant:
        """Return the newest version of a user's variant. Raises GymError where there is none, or its record is damaged."""
        with self.index.reading() as connection:
            return _there(user, self.index.newest(connection, check_user_id(user)))

    def lineage(self, user: str) -> list[Variant]:
        """Return all versions of a user's variant, the oldest first. Raises GymError where the chain is broken."""
        with self.index.reading() as connection:
            newest = _there(user, self.index.newest(connection, check_user_id(user)))
            found = [self.index.parsed(row) for row in self.index.rows(connection, user)]
        parents = [None, *(each.id for each in found)]
        if found[-1:] != [newest] or [(each.number, each.parent) for each in found] != list(enumerate(parents[:-1], 1)):
            raise GymError(
                f"versions of `{user}` are missing", where=str(self.index.path), fix="put back a copy of the index"
            )
        return found

    def listing(self) -> Listing:
        """Return what there is."""
        with self.index.reading() as connection:
            return self.index.listing(connection)

    @contextmanager
    def open(self, user: str) -> Iterator[Opened]:
        """Give a user's variant, whose files stay as they are during the block, whatever is stored or removed meanwhile.

        Raises GymError where there is none, or a file is damaged, which it names.
        """
        with self._folders.folder() as folder:
            yield Opened(self._linked(user, folder), folder)

    def locate(self, user: str, name: str = "delta.safetensors") -> Path:
        """Return where a file of a user's variant lies. It stays there until this thread locates the user again, or the user is
        `release`d.

        Raises what `open` does, and GymError where it has no such file.
        """
        with ExitStack() as stack:
            found = stack.enter_context(self.open(user))
            if name not in {each.name for each in found.variant.files}:
                raise GymError(f"the variant of `{user}` has no file `{name}`", where=str(self.root))
            key = user, threading.get_ident()
            with self._turn:
                before = self._located.pop(key, ExitStack())
                self._located[key] = stack.pop_all()
            before.close()
        return found.path / name

    def release(self, user: str) -> None:
        """Let go of what any thread located."""
        with self._turn:
            mine = [self._located.pop(key) for key in list(self._located) if key[0] == user]
        for stack in mine:
            stack.close()

    def verify(self, user: str) -> Variant:
        """Read all files of a user's variant, and its lineage. Raises GymError that names what is damaged."""
        with self.open(user) as found:
            self.lineage(user)
        return found.variant

    def problems(self) -> list[Problem]:
        """Return what is wrong with the index as such."""
        with self.index.reading() as connection:
            return self.index.problems(connection)

    def gc(self) -> Collected:
        """Take away what killed processes left, and files that no newest version has.

        Writers wait meanwhile; what is open stays readable. Raises GymError where a record is damaged, and takes nothing away.
        """
        with self.index.writing() as connection:
            listed = self.index.listing(connection)
            if damaged := [*self.index.problems(connection), *listed.damaged]:
                raise GymError(damaged)
            used = {each.sha256 for variant in listed.variants for each in variant.files}
            processes = self._folders.collect()
            for left in self.root.glob(f".*{BUILDING}"):
                remove(left)
            try:
                files, size = self._content.remove([each for each in self._content.hashes() if each not in used])
            except OSError as error:
                raise GymError(f"the disk does not let go of a file: {error}", where=str(self.root)) from error
        return Collected(files, size, processes)

    def _linked(self, user: str, folder: Path) -> Variant:
        """Link a user's files into a folder, and check them."""
        while True:
            found = self.get(user)
            try:
                gone = self._content.link(found.files, folder, user)
                if gone is None:
                    self._content.check(found.files, folder, user)
                    check_stored(user, found.artifact["details"], found.files)
                    return found
            except OSError as error:
                raise GymError(f"the variant of `{user}` cannot be opened: {error}", where=str(folder)) from error
            if self.get(user).id == found.id and not self._content.has(gone):
                raise self._content.damaged(gone, user, "is gone")
            for left in folder.iterdir():  # another version, or the same again, took its place meanwhile
                remove(left)

    def _publish(
        self, user: str, artifact: Artifact, quality: Any, safety: Any, may: Callable[[Variant | None], None]
    ) -> Variant:
        """Store a version of a user's variant, if `may` raises nothing about the one before it."""
        check_user_id(user)
        told: dict[str, Any] = {
            "artifact": record.plain(artifact),
            "quality": record.evidence(quality, "quality"),
            "safety": record.evidence(_of_itself(artifact) if safety is None else safety, "safety"),
        }
        with self.index.reading() as connection:
            may(self.index.newest(connection, user))
        files: Sequence[record.StoredFile] = ()
        try:
            with self._folders.folder() as folder:
                files = staged(artifact.path, folder)
                check_stored(user, told["artifact"]["details"], files)
                with self.index.writing() as connection:
                    before = self.index.newest(connection, user)
                    may(before)
                    after = Variant(user=user, **_next(before), **told, files=tuple(files))
                    self._content.place(folder, files)
                    self.index.add(connection, after)
        except BaseException as error:
            self._sweep([each.sha256 for each in files])
            if isinstance(error, OSError):
                fix = "if it is full, make room; what was there before is whole"
                raise GymError(f"the disk does not take it: {error}", where=str(self.root), fix=fix) from error
            raise
        self._sweep([each.sha256 for each in before.files] if before else [])
        return after

    def _sweep(self, hashes: Sequence[str]) -> None:
        """Remove those of these files that nobody needs any more. What cannot be removed now is left to `gc`."""
        if hashes:
            with suppress(GymError, OSError), self.index.writing() as connection:
                self._content.remove(self.index.unused(connection, hashes))


def _next(before: Variant | None) -> dict[str, Any]:
    """Return what the record of a version says of the one before it, and when it is written."""
    if before is None:
        return {"number": 1, "parent": None, "created": record.now()}
    return {"number": before.number + 1, "parent": before.id, "created": record.now()}


def _missing(user: str) -> GymError:
    return GymError(f"there is no variant of `{user}`", fix="`gym variants list` shows those there are")


def _there(user: str, found: Variant | None) -> Variant:
    if found is None:
        raise _missing(user)
    return found


def _of_itself(artifact: Artifact) -> Any:
    """Return what was measured of the safety of an artifact when it was made."""
    return artifact.details.get("safety", NOT_EVALUATED)


def _must_be_new(user: str, before: Variant | None) -> None:
    if before is not None:
        raise GymError(f"there is a variant of `{user}` already", key="user_id", fix="update it, or remove it first")


def _must_follow(user: str, before: Variant | None, parent: str | None) -> None:
    if parent is not None and _there(user, before).id != parent:
        raise BusyError(
            f"another version of `{user}` was stored since {parent[:12]}",
            key="parent",
            fix="go on from the newest one",
        )
    _there(user, before)
