"""What a format is made of: how an artifact is written, and how a fresh process loads it again.

A format knows nothing of certificates, of hashes or of where its artifact will lie.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gym_export.kinds import CertifiedExporter
from gym_export.source import Prompt, Source

Logits = npt.NDArray[np.float32]  #: [tokens, vocabulary], or one score a row


class Loaded(ABC):
    """An artifact in its runtime. One that compares weights alone answers nothing, and need not be loaded."""

    @abstractmethod
    def logits(self, tokens: Sequence[int]) -> Logits:
        """Return what the artifact answers to tokens: fp32 logits `[len(tokens), vocabulary]`."""

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        """Return the tokens that it writes behind others, the likeliest each time; by default without a cache."""
        return greedy(self.logits, tokens, count)

    def encode(self, prompt: Prompt) -> list[int] | None:
        """Return a prompt as the artifact's own tokenizer and chat template have it; None where it has none."""
        return None


class Format(ABC):
    """What `CertifiedExporter.format` names."""

    def __init__(self, config: CertifiedExporter) -> None:
        """Keep the options."""
        self.config: Any = config

    def missing(self) -> str:
        """Return what must be installed to load an artifact, as pip calls it; empty where it is there."""
        return ""

    def versions(self) -> Mapping[str, str]:
        """Return the versions of the libraries that it writes and loads with, by distribution."""
        return {}

    def check(self, source: Source) -> None:
        """Raise GymError where the source cannot be written in this format. Asked before anything is written."""
        return

    def made_from(self) -> Mapping[str, str]:
        """Return hashes of files beside the artifact that its options name: with others, it is another export."""
        return {}

    def left_out(self, source: Source) -> str:
        """Return what of a model has no place in the format, in words for whoever exports it; empty where it holds all."""
        return ""

    def bound(self, source: Source) -> float:
        """Return how far answers may be off, relative to their norm. Default: what the exporter declares."""
        found: float = self.config.error_bound()
        return found

    @abstractmethod
    def size(self, source: Source) -> int:
        """Return the bytes that writing takes on the disk, intermediate files included."""

    @abstractmethod
    def write(self, source: Source, into: Path) -> Mapping[str, Any]:
        """Fill the existing folder `into`; return what `weights` is to be told of it, as plain data.

        Raises GymError where a weight does not fit into the format.
        """

    def weights(self, source: Source, path: Path, told: Mapping[str, Any]) -> Mapping[str, Any]:
        """Compare the weights of an artifact with the source, in a fresh process; return figures for the certificate.

        `told` is what `write` returned; empty where an artifact is verified again. Raises GymError where one is off by more
        than the format rounds. Default: a format whose weights cannot be told apart compares answers alone.
        """
        return {}

    @abstractmethod
    def load(self, source: Source, path: Path) -> Loaded | None:
        """Load an artifact in its runtime, in a fresh process; None where it can only be read."""

    def arrays(self, path: Path) -> Mapping[str, Any]:
        """Return the weights of an artifact by the names that they have in transformers, in fp32, where it compares weights."""
        raise TypeError(f"{type(self).__name__} compares answers, and does not say its weights")


def greedy(ask: Callable[[Sequence[int]], Logits], tokens: Sequence[int], count: int) -> list[int]:
    """Return the tokens that a model writes behind others, the likeliest each time."""
    found = list(tokens)
    for _ in range(count):
        found.append(int(ask(found)[-1].argmax()))
    return found[len(tokens) :]
