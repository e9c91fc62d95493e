"""Examples, read from the arrays of the token cache as they are asked for. How these are written: `gym_data.token_cache`."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gym_data.media import MediaReader, Medium
from gym_data.tokenizer import Mask, Tokens

ARRAYS: dict[str, tuple[str, tuple[int, ...]]] = {
    "tokens": ("<i4", ()),
    "trained": ("|b1", ()),
    "ends": ("<i8", ()),
    "origins": ("<i8", (3,)),
    "segments": ("<i8", (2,)),
    "segments_ends": ("<i8", ()),
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
    trained: Mask  #: bool [length]; whether the token is predicted and trained on, never true of the first
    media: Sequence[Medium] = field(default=(), kw_only=True)  #: that its tokens show, in order
    reader: MediaReader | None = field(default=None, kw_only=True)  #: of its media

    def model_inputs(self, tokens: Tokens | None = None) -> Mapping[str, npt.NDArray[Any]]:
        """Return what the model is given beside its tokens, or beside these with the same media; nothing where it has none.

        Raises DataError where the file of an image is not what it was.
        """
        if self.reader is None or not self.media:
            return {}
        return self.reader.inputs(self.media, self.tokens if tokens is None else tokens)

    @property
    def input_tokens(self) -> Collection[int]:
        """Return the tokens that stand for parts of images, videos or sounds."""
        return self.reader.tokens if self.reader else ()

    @property
    def inputs_key(self) -> str:
        """Return what is equal where the model is given the same beside the same tokens; empty where that is nothing."""
        told = [each["sha256"] for each in self.media]
        return " ".join([self.reader.fingerprint, *told]) if self.reader and told else ""

    @classmethod
    def longest(cls, id: str, length: int) -> Example:
        """Return an example with the most to learn where a sequence has `length` tokens, for plans without data."""
        return cls(id, *_all_trained(length))

    @property
    def parts(self) -> Sequence[tuple[str, slice]]:
        """Return what its tokens fall into, by name where there is more than one."""
        return [("", slice(None))]

    @property
    def judgement(self) -> str:
        """Return what a preview says of it; empty where it was not judged."""
        return ""


@dataclass(frozen=True)
class Branched(Example):
    """Sequences that begin alike, what they share laid out once: segments, each of which may continue an earlier one.

    The first token of a segment that continues another may be trained on; the last one of that other predicts it.
    """

    segments: Sequence[tuple[int, int | None]]  #: tokens of each, and the number of the one that it continues

    @property
    def parts(self) -> Sequence[tuple[str, slice]]:
        """Return the segments, by their numbers from 1."""
        ends = np.cumsum([length for length, _ in self.segments]).tolist()
        names = (
            f"{number}" if before is None else f"{number} (after {before + 1})"
            for number, (_, before) in enumerate(self.segments, 1)
        )
        return [(name, slice(end - size, end)) for name, end, (size, _) in zip(names, ends, self.segments, strict=True)]


@dataclass(frozen=True)
class Prompt(Example):
    """A sequence to answer; nothing of it is trained on."""

    messages: Sequence[Mapping[str, Any]]  #: what the tokens say
    row: Mapping[str, Any]  #: all columns of the row; `answer` is the answer it holds, unless it has such a column
    tools: Sequence[Mapping[str, Any]] = ()  #: functions that it offers
    values: Mapping[str, Any] = field(default_factory=dict)  #: what the chat template was handed besides

    @classmethod
    def longest(cls, id: str, length: int) -> Prompt:
        """Return a prompt of which nothing is known but its tokens."""
        tokens, trained = _all_trained(length)
        return cls(id, tokens, ~trained, (), {})


class Several(Example, ABC):
    """Base of samples that are always several sequences."""

    @property
    @abstractmethod
    def segments(self) -> Sequence[tuple[int, int | None]]:
        """Tokens of each of them, and the number of the one that it continues."""


@dataclass(frozen=True)
class Pair(Several):
    """Two answers, of which one was preferred: the tokens that both sides begin with, then the rest of each side.

    None of the tokens they share is trained on.
    """

    shared: int  #: tokens that both sides begin with
    chosen: int  #: tokens of the preferred side after them; those of the other side follow
    margin: float = 0.0  #: how much better it is said to be

    @classmethod
    def longest(cls, id: str, length: int) -> Pair:
        """Return two sides of that length that share nothing."""
        return cls(id, *_all_trained(2 * length), shared=0, chosen=length)

    @property
    def segments(self) -> Sequence[tuple[int, int | None]]:
        """Tokens of what is shared and of the rest of each side, and which of them continues which: sides begin alike."""
        rest = self.chosen, len(self.tokens) - self.shared - self.chosen
        return (
            [(self.shared, None), *((length, 0) for length in rest)] if self.shared else [(each, None) for each in rest]
        )

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
class UnpairedExample(Example):
    """A conversation whose last answer was labelled; that answer is trained on."""

    desirable: bool

    @classmethod
    def longest(cls, id: str, length: int) -> UnpairedExample:
        """Return a desirable response."""
        return cls(id, *_all_trained(length), desirable=True)

    @property
    def judgement(self) -> str:
        """Say how it was judged."""
        return "desirable" if self.desirable else "undesirable"


@dataclass(frozen=True)
class Steps(Example):
    """A sequence whose answer was labelled step by step; what is trained on are the tokens that end the labelled steps."""

    labels: Sequence[float]  #: how likely each of them is right

    @classmethod
    def longest(cls, id: str, length: int) -> Steps:
        """Return one that is judged at every token."""
        return cls(id, *_all_trained(length), labels=[1.0] * length)

    @property
    def judgement(self) -> str:
        """Say how the steps were judged."""
        return f"steps {', '.join(f'{label:g}' for label in self.labels)}"


#: What is known of an example beside its tokens, by the shape of the rows.
KINDS: dict[str, type[Example]] = {"prompt": Prompt, "preference": Pair, "feedback": UnpairedExample, "stepwise": Steps}


class Examples(Sequence[Example]):
    """Examples in order, made of arrays as they are asked for."""

    def __init__(
        self,
        array: Callable[[str], Any],
        order: str,
        names: Sequence[str],
        kind: type[Example] = Example,
        media: MediaReader | None = None,
    ) -> None:
        """Take what finds an array by its name; `order` names the one that says which examples these are.

        `media` reads those of examples.
        """
        self._media = media
        self._kind = kind
        self._tokens, self._trained, self._ends = array("tokens"), array("trained"), array("ends")
        self._origins = array("origins")
        self._about, self._about_ends = array("about"), array("about_ends")
        self._segments, self._segments_ends = array("segments"), array("segments_ends")
        self._order = array(order)
        self._names = names

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self._order)

    def __getitem__(self, index: Any) -> Any:
        """Return one example, or a list of them for a slice."""
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        number = int(self._order[index])
        source, row, part = self._origins[number].tolist()
        name = f"{self._names[source]}:{row}" + (f"#{part + 1}" if part else "")
        here = _range(self._ends, number)
        tokens, trained = self._tokens[here], self._trained[here]
        if len(self._segments_ends):
            segments = self._segments[_range(self._segments_ends, number)].tolist()
            if len(segments) > 1:
                known = [(length, before if before >= 0 else None) for length, before in segments]
                return Branched(name, tokens, trained, known)
        if not len(self._about_ends):
            return self._kind(name, tokens, trained)
        about = json.loads(self._about[_range(self._about_ends, number)].tobytes())
        return self._kind(name, tokens, trained, reader=self._media, **about)

    def by_source(self) -> dict[str, Examples]:
        """Return the examples of each source, by its name."""
        sources = self._origins[self._order][:, 0]
        found: dict[str, Examples] = {}
        for name in dict.fromkeys(self._names[source] for source in sources.tolist()):
            own = [source for source, other in enumerate(self._names) if other == name]
            found[name] = copy(self)
            found[name]._order = self._order[np.isin(sources, own)]
        return found

    def positions(self, numbers: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        """Return how many positions these examples take; those that have no branches are not read."""
        found = self.lengths[numbers]
        for place in np.flatnonzero(self._branch(numbers)).tolist():
            found[place] = deepest(self[int(numbers[place])].segments)
        return found

    def _branch(self, numbers: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
        """Return which of these examples have segments that may continue others."""
        if len(self._segments_ends):
            branch: npt.NDArray[np.bool_] = np.diff(self._segments_ends, prepend=0)[self._order[numbers]] > 1
            return branch
        return np.full(len(numbers), issubclass(self._kind, Several))

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Number of tokens of each example."""
        return np.diff(self._ends, prepend=0)[self._order]


def deepest(segments: Sequence[tuple[int, int | None]]) -> int:
    """Return the most tokens along what each segment continues: the positions that a sequence takes."""
    ends: list[int] = []
    for length, before in segments:
        ends.append(length + (0 if before is None else ends[before]))
    return max(ends)


def _all_trained(length: int) -> tuple[Tokens, Mask]:
    return np.zeros(length, dtype=np.int32), np.ones(length, dtype=np.bool_)


def _range(ends: npt.NDArray[np.int64], number: int) -> slice:
    """Return where the items of one of many lie that follow each other."""
    return slice(int(ends[number - 1]) if number else 0, int(ends[number]))


def mapped(folder: Path, name: str) -> Any:
    """Return an array of a cache folder, mapped where it may be large."""
    path = folder / f"{name}.npy"
    return np.load(path, mmap_mode=None if name in ("train", "validation") else "r", allow_pickle=False)
