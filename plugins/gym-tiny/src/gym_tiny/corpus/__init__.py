"""What the base model is pre-trained on: generated, deterministic, free of held-out tasks.

Plain documents teach the skills; transcripts show an assistant that mostly does not use them. Together they
make a base that fine-tuning and reinforcement learning visibly improve.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from gym_tiny.corpus.chats import transcript
from gym_tiny.corpus.drills import drill
from gym_tiny.corpus.prose import prose

__all__ = ["documents", "transcripts"]

_PROSE = 0.04  # share of the documents


def documents(count: int, seed: int = 0) -> Iterator[str]:
    """`count` plain texts. Text `i` depends on (seed, i) alone."""
    for index in range(count):
        rng = Random(f"documents/{seed}/{index}")
        yield prose(rng) if rng.random() < _PROSE else drill(rng)


def transcripts(count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """`count` conversations as OpenAI-style rows. Row `i` depends on (seed, i) alone."""
    for index in range(count):
        yield transcript(Random(f"transcripts/{seed}/{index}"))
