"""The token cache on disk: what was tokenised once is found again by what it was made from.

One folder each, named by a hash of everything that decides its content: flat `.npy` arrays, and a manifest with their
hashes, written last. The folder appears under its name at once or not at all. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gym_core import GymError
from gym_core.files import BUILDING
from gym_core.outputlock import OutputLock
from gym_data.examples import ARRAYS
from gym_data.sequences import Sequences
from gym_data.sources.files import hash_file

LAYOUT = 4  #: changes when the files change their meaning
MANIFEST = "manifest.json"
UNFINISHED = ".unfinished-"
AGAIN = (0.01, 0.1, 1.0)  #: seconds between looks at a folder that is being replaced
ABANDONED = 60.0  #: seconds after which an unfinished folder that no process holds is taken away
ABANDONED_FILE = 3600.0  #: the same for an unfinished file that was not written to


class Store(Sequences):
    """Writes a cache folder."""

    def __init__(self, root: Path) -> None:
        """Begin in a temporary folder beside the final one, and take away what killed processes left there."""
        super().__init__()
        root.mkdir(parents=True, exist_ok=True)
        collect(root)
        self.root = root
        self.folder = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=root))
        self._lock = OutputLock(self.folder)
        self._lock.__enter__()
        self._columns = {name: Column(self.folder / f"{name}.npy", name) for name in ARRAYS}

    def extend(self, **columns: npt.NDArray[Any]) -> None:
        """Append to arrays."""
        for name, values in columns.items():
            self._columns[name].append(values)

    def finish(self, name: str, manifest: Mapping[str, Any], replace: bool = False) -> Path:
        """Write the manifest and move the folder to its name; what another process put there meanwhile is as good.

        With `replace` what bears the name is taken away, only now: other processes may be about to read it.
        """
        self.flush()
        for column in self._columns.values():
            column.close()
        hashes = {name: hash_file(self.folder / f"{name}.npy") for name in ARRAYS}
        text = json.dumps({"layout": LAYOUT, **manifest, "sha256": hashes}, indent=1)
        (self.folder / MANIFEST).write_text(text, encoding="utf-8")
        self._release()
        final = self.root / name
        if replace:
            remove(self.root, name)
        try:
            self.folder.rename(final)
        except OSError:
            if not final.is_dir():
                raise
            shutil.rmtree(self.folder)
        return final

    def discard(self) -> None:
        """Remove what was written, whatever keeps it from being written to the end."""
        for column in self._columns.values():
            column.drop()
        self._release()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _release(self) -> None:
        self._lock.__exit__()
        with suppress(OSError):
            (self.folder / OutputLock.NAME).unlink()


class Column:
    """An `.npy` file that grows; numpy leaves room in the header for the final length."""

    def __init__(self, path: Path, name: str) -> None:
        """Create the file."""
        kind, self._tail = ARRAYS[name]
        self._dtype = np.dtype(kind)
        self._path = path
        self._file = path.open("wb")
        self._length = 0
        self._header()

    def append(self, values: npt.NDArray[Any]) -> None:
        """Write values at the end."""
        try:
            self._file.write(np.ascontiguousarray(values, dtype=self._dtype).tobytes())
        except OSError as error:
            error.filename = str(self._path)
            raise
        self._length += len(values)

    def close(self) -> None:
        """Write the final header and flush to disk; does nothing the second time."""
        if self._file.closed:
            return
        with self._named():
            self._file.seek(0)
            self._header()
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()

    def drop(self) -> None:
        """Close the file as it is; what a full disk does not take is lost."""
        with suppress(OSError):
            self._file.close()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Let an error of the system name the file, as one of opening it does."""
        try:
            yield
        except OSError as error:
            error.filename = str(self._path)
            raise

    def _header(self) -> None:
        shape = (self._length, *self._tail)
        described = {"descr": self._dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, described)


def find(root: Path, name: str) -> dict[str, Any] | None:
    """Return the manifest of a cache folder; None where it is missing, damaged or of another layout."""
    folder = root / name
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        sound = manifest["layout"] == LAYOUT and manifest["sha256"].keys() == ARRAYS.keys()
        sound = sound and {"names", "report"} <= manifest.keys()
        if not sound or any(hash_file(folder / f"{array}.npy") != manifest["sha256"][array] for array in ARRAYS):
            return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # whatever a damaged file can hold
        return None
    with suppress(OSError):  # a cache that others fill can be read only
        os.utime(folder / MANIFEST)
    found: dict[str, Any] = manifest
    return found


def awaited(root: Path, name: str) -> dict[str, Any] | None:
    """Return what `find` does, also where another process is about to put as good a folder in the place of what was there."""
    for seconds in AGAIN:
        if (manifest := find(root, name)) is not None:
            return manifest
        time.sleep(seconds)
    return find(root, name)


def content(manifest: Mapping[str, Any]) -> str:
    """Return what names the examples of a cache folder, whoever made them: a hash of all that they hold."""
    return hashlib.sha256(json.dumps(manifest["sha256"], sort_keys=True).encode()).hexdigest()[:32]


def remove(root: Path, name: str) -> None:
    """Take what bears a name in the cache away, first out of the sight of others."""
    if os.path.lexists(root / name):
        aside = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=root))
        with suppress(FileNotFoundError):  # another process was first
            (root / name).rename(aside / name)
        shutil.rmtree(aside, ignore_errors=True)


def collect(root: Path) -> None:
    """Take away what killed processes left unfinished: folders that none holds the lock of, files that do not grow."""
    for path in [*root.glob(f"{UNFINISHED}*"), *root.glob(f".*{BUILDING}")]:
        with suppress(OSError, GymError):
            age = time.time() - path.stat().st_mtime
            if path.is_file() and age > ABANDONED_FILE:
                path.unlink()
            elif path.is_dir() and age > ABANDONED:
                with OutputLock(path):
                    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def writing(root: Path) -> Iterator[None]:
    """Let a system's error name the file, what it is for and what helps."""
    try:
        yield
    except OSError as error:
        raise GymError(
            f"the token cache cannot be written: {error.strerror or error}",
            where=str(error.filename or root),
            fix="make room there (`gym data cache prune`), or set GYM_CACHE to a folder on another disk",
        ) from error
