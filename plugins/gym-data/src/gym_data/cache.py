"""The token cache: what was tokenised once is found again by what it was made from.

One folder each, named by a hash of everything that decides its content: flat `.npy` arrays that are memory-mapped,
and a manifest with their hashes, written last. The folder appears under its name at once or not at all. Nothing is
pickled.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gym_data.sources.files import hash_file
from gym_data.tokenizer import Mask, Tokens

LAYOUT = 3  #: changes when the files change their meaning
MANIFEST = "manifest.json"
ARRAYS: dict[str, tuple[str, tuple[int, ...]]] = {
    "tokens": ("<i4", ()),
    "trained": ("|b1", ()),
    "ends": ("<i8", ()),
    "origins": ("<i8", (3,)),
    "about": ("|u1", ()),
    "about_ends": ("<i8", ()),
    "train": ("<i8", ()),
    "validation": ("<i8", ()),
}


@dataclass(frozen=True)
class Example:
    """One sequence to learn from."""

    id: str  #: source and row it came from
    tokens: Tokens  #: int32 [length]
    trained: Mask  #: bool [length]; whether the token is predicted and learnt from, never true of the first

    @property
    def parts(self) -> Sequence[tuple[str, slice]]:
        """Return what its tokens fall into, by name where there is more than one."""
        return [("", slice(None))]

    @property
    def judgement(self) -> str:
        """Return what a preview says of it; empty where it was not judged."""
        return ""


@dataclass(frozen=True)
class Prompt(Example):
    """A sequence to answer; nothing of it is learnt."""

    messages: Sequence[Mapping[str, Any]]  #: what the tokens say
    row: Mapping[str, Any]  #: all columns of the row; `answer` is the answer it holds, unless it has such a column


@dataclass(frozen=True)
class Pair(Example):
    """Two answers, of which one was preferred: the tokens that both sides begin with, then the rest of each side.

    None of the tokens they share is learnt.
    """

    shared: int  #: tokens that both sides begin with
    chosen: int  #: tokens of the preferred side after them; those of the other side follow
    margin: float = 0.0  #: how much better it is said to be

    @property
    def parts(self) -> Sequence[tuple[str, slice]]:
        """Return what is shared, and the rest of both sides."""
        middle = self.shared + self.chosen
        sides = {"prompt": slice(0, self.shared), "chosen": slice(self.shared, middle), "rejected": slice(middle, None)}
        return list(sides.items())

    @property
    def judgement(self) -> str:
        """Say the margin."""
        return f"margin {self.margin:g}" if self.margin else ""


@dataclass(frozen=True)
class Judged(Example):
    """A conversation whose last answer was judged; that answer is learnt."""

    good: bool

    @property
    def judgement(self) -> str:
        """Say how it was judged."""
        return "good" if self.good else "bad"


@dataclass(frozen=True)
class Steps(Example):
    """A sequence whose answer was judged step by step; what is learnt are the tokens that end the judged steps."""

    labels: Sequence[float]  #: how likely each of them is right

    @property
    def judgement(self) -> str:
        """Say how the steps were judged."""
        return f"steps {', '.join(f'{label:g}' for label in self.labels)}"


#: What is known of an example beside its tokens, by the shape of the rows.
KINDS: dict[str, type[Example]] = {"prompt": Prompt, "preference": Pair, "feedback": Judged, "stepwise": Steps}


class Examples(Sequence[Example]):
    """Examples in order, read from the cache as they are asked for."""

    def __init__(self, folder: Path, order: str, names: Sequence[str], shape: str = "") -> None:
        """Map the arrays of a cache folder; `order` names the one that says which examples these are."""
        self._kind = KINDS.get(shape, Example)
        self._tokens = _load(folder, "tokens")
        self._trained = _load(folder, "trained")
        self._ends = _load(folder, "ends")
        self._origins = _load(folder, "origins")
        self._about = _load(folder, "about")
        self._about_ends = _load(folder, "about_ends")
        self._order = _load(folder, order)
        self._names = names

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self._order)

    def __getitem__(self, index: Any) -> Any:
        """Return one example, or a list of them for a slice."""
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        number = int(self._order[index])
        start, end = (int(self._ends[number - 1]) if number else 0), int(self._ends[number])
        source, row, part = self._origins[number].tolist()
        name = f"{self._names[source]}:{row}" + (f"#{part + 1}" if part else "")
        tokens, trained = self._tokens[start:end], self._trained[start:end]
        if not len(self._about_ends):
            return self._kind(name, tokens, trained)
        start, end = (int(self._about_ends[number - 1]) if number else 0), int(self._about_ends[number])
        return self._kind(name, tokens, trained, **json.loads(self._about[start:end].tobytes()))

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Number of tokens of each example."""
        return np.diff(self._ends, prepend=0)[self._order]


class Store:
    """Writes a cache folder."""

    def __init__(self, root: Path) -> None:
        """Begin in a temporary folder beside the final one."""
        root.mkdir(parents=True, exist_ok=True)
        self.root = root
        self.folder = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=root))
        self._columns = {name: Column(self.folder / f"{name}.npy", name) for name in ARRAYS}
        self._end = self._about_end = 0

    def add(
        self, tokens: Tokens, trained: Mask, origin: tuple[int, int, int], about: Mapping[str, Any] | None = None
    ) -> None:
        """Append a sequence, its source, row and part, and what else its `KINDS` holds (of all, or of none)."""
        self._end += len(tokens)
        self.extend(tokens=tokens, trained=trained, ends=np.asarray([self._end]), origins=np.asarray([origin]))
        if about is not None:
            text = np.frombuffer(json.dumps(about, default=str).encode("utf-8"), dtype=np.uint8)
            self._about_end += len(text)
            self.extend(about=text, about_ends=np.asarray([self._about_end]))

    def extend(self, **columns: npt.NDArray[Any]) -> None:
        """Append to arrays."""
        for name, values in columns.items():
            self._columns[name].append(values)

    def finish(self, name: str, manifest: Mapping[str, Any]) -> Path:
        """Write the manifest and move the folder to its name; what another process put there meanwhile is as good."""
        for column in self._columns.values():
            column.close()
        hashes = {name: hash_file(self.folder / f"{name}.npy") for name in ARRAYS}
        text = json.dumps({"layout": LAYOUT, **manifest, "sha256": hashes}, indent=1)
        (self.folder / MANIFEST).write_text(text, encoding="utf-8")
        final = self.root / name
        try:
            self.folder.rename(final)
        except OSError:
            if not final.is_dir():
                raise
            shutil.rmtree(self.folder)
        return final

    def discard(self) -> None:
        """Remove what was written."""
        for column in self._columns.values():
            column.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Column:
    """An `.npy` file that grows; numpy leaves room in the header for the final length."""

    def __init__(self, path: Path, name: str) -> None:
        """Create the file."""
        kind, self._tail = ARRAYS[name]
        self._dtype = np.dtype(kind)
        self._file = path.open("wb")
        self._length = 0
        self._header()

    def append(self, values: npt.NDArray[Any]) -> None:
        """Write values at the end."""
        self._file.write(np.ascontiguousarray(values, dtype=self._dtype).tobytes())
        self._length += len(values)

    def close(self) -> None:
        """Write the final header and flush to disk; does nothing the second time."""
        if not self._file.closed:
            self._file.seek(0)
            self._header()
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()

    def _header(self) -> None:
        shape = (self._length, *self._tail)
        described = {"descr": self._dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, described)


def find(root: Path, name: str) -> dict[str, Any] | None:
    """Return the manifest of a cache folder; None where it is missing, damaged or of another layout."""
    folder = root / name
    if not (folder / MANIFEST).is_file():
        return None
    manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    sound = manifest["layout"] == LAYOUT and all(
        (folder / f"{array}.npy").is_file() and hash_file(folder / f"{array}.npy") == digest
        for array, digest in manifest["sha256"].items()
    )
    return manifest if sound else None


def remove(root: Path, name: str) -> None:
    """Take a cache folder away, first out of the sight of others."""
    if (root / name).is_dir():
        aside = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=root))
        (root / name).rename(aside / name)
        shutil.rmtree(aside)


def _load(folder: Path, name: str) -> Any:
    path = folder / f"{name}.npy"
    return np.load(path, mmap_mode=None if name in ("train", "validation") else "r", allow_pickle=False)
