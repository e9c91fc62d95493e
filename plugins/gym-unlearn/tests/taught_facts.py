"""A model that learnt twenty facts by heart, and one that learnt fifteen of them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from gym_testkit.bench import Bench

FORGET, KEEP, LETTERS = 5, 15, "nopqrstuvwxyz"


@dataclass(frozen=True)
class Facts:
    """Files of facts, and the outputs of runs that learnt them."""

    bench: Bench
    forget: str
    retain: str
    taught: str
    never: str

    @property
    def data(self) -> list[dict[str, Any]]:
        """The sources of a recipe that forgets."""
        return [{"name": "forget", "source": self.forget}, {"name": "retain", "source": self.retain}]

    def recipe(self, algorithm: Any, **train: Any) -> dict[str, Any]:
        """Return a recipe that makes the taught model forget."""
        return {
            **self.bench.recipe(algorithm, "feedback", **train),
            "model": self.taught,
            "data": {"sources": self.data},
        }


def fact(number: int, draw: random.Random) -> dict[str, Any]:
    """Return a question that has an answer of two letters."""
    answer = "".join(draw.choice(LETTERS) for _ in range(2))
    turns = [("user", chr(97 + number) * 2), ("assistant", answer)]
    return {"messages": [{"role": role, "content": text} for role, text in turns]}
