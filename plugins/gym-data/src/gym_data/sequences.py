"""Sequences on their way into flat arrays, on the disk (`gym_data.token_cache`) or in memory."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Sized
from typing import Any

import numpy as np
import numpy.typing as npt

from gym_data.examples import ARRAYS
from gym_data.tokenizer import Mask, Tokens

TOGETHER = 1000  #: sequences written at a time


class Sequences(ABC):
    """Gathers sequences, and hands them on as arrays, many at a time."""

    def __init__(self) -> None:
        """Begin with none."""
        self._waiting: list[tuple[Tokens, Mask, tuple[int, int, int], bytes | None, list[tuple[int, int]]]] = []
        self._ends = dict.fromkeys(("ends", "about_ends", "segments_ends"), 0)

    @abstractmethod
    def extend(self, **columns: npt.NDArray[Any]) -> None:
        """Append to arrays."""

    def add(
        self,
        tokens: Tokens,
        trained: Mask,
        origin: tuple[int, int, int],
        about: Mapping[str, Any] | None = None,
        segments: Sequence[tuple[int, int | None]] = (),
    ) -> None:
        """Append a sequence, its source, row and part, and of all or of none what else its `KINDS` holds, or its segments."""
        told = None if about is None else json.dumps(about, default=str).encode("utf-8")
        known = [(length, -1 if before is None else before) for length, before in segments]
        self._waiting.append((tokens, trained, origin, told, known))
        if len(self._waiting) == TOGETHER:
            self.flush()

    def flush(self) -> None:
        """Hand on what was added since the last time."""
        if not self._waiting:
            return
        tokens, trained, origins, abouts, segments = zip(*self._waiting, strict=True)
        self._waiting = []
        self.extend(tokens=np.concatenate(tokens), trained=np.concatenate(trained), origins=np.asarray(origins))
        self.extend(ends=self._end("ends", tokens))
        if abouts[0] is not None:
            text = np.frombuffer(b"".join(abouts), dtype=np.uint8)
            self.extend(about=text, about_ends=self._end("about_ends", abouts))
        if segments[0]:
            flat = np.asarray([each for several in segments for each in several])
            self.extend(segments=flat, segments_ends=self._end("segments_ends", segments))

    def _end(self, name: str, items: Sequence[Sized]) -> npt.NDArray[np.int64]:
        """Return where each of these ends in its array."""
        ends = self._ends[name] + np.cumsum([len(each) for each in items], dtype=np.int64)
        self._ends[name] = int(ends[-1])
        return ends


class Held(Sequences):
    """Sequences that stay in memory."""

    def __init__(self) -> None:
        """Begin with none."""
        super().__init__()
        self._parts: dict[str, list[npt.NDArray[Any]]] = {
            name: [np.zeros((0, *tail), dtype=kind)] for name, (kind, tail) in ARRAYS.items()
        }

    def extend(self, **columns: npt.NDArray[Any]) -> None:
        """Append to arrays."""
        for name, values in columns.items():
            self._parts[name].append(np.asarray(values, dtype=ARRAYS[name][0]))

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return all arrays by name."""
        self.flush()
        for name, parts in self._parts.items():
            self._parts[name] = [np.concatenate(parts)]
        return {name: whole for name, (whole,) in self._parts.items()}


def fingerprint(arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """Return a hash of all that arrays hold."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(arrays):
        digest.update(f"{name}{arrays[name].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()
