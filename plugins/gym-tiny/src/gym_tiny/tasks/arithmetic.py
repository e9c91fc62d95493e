"""Sums and differences of positive numbers up to fifty."""

from __future__ import annotations

from random import Random

from gym_tiny.tasks.task import Task, user

KIND = "arithmetic"
LARGEST = 50

_ADD = (
    "What is {a} + {b}?",
    "{a} + {b} =",
    "Add {a} and {b}.",
    "How much is {a} plus {b}?",
    "Work out {a} + {b}.",
)
_SUBTRACT = (
    "What is {a} - {b}?",
    "{a} - {b} =",
    "Take {b} from {a}.",
    "How much is {a} minus {b}?",
    "Work out {a} - {b}.",
)


def make(rng: Random) -> Task:
    """One sum or difference; the key is the operands, so a held-out pair is unseen in every wording."""
    adding = rng.random() < 0.5
    total = rng.randrange(2, LARGEST + 1)
    part = rng.randrange(1, total)
    a, b, result = (part, total - part, total) if adding else (total, part, total - part)
    sign = "+" if adding else "-"
    phrasing = rng.randrange(len(_ADD))
    slip = rng.choice([slip for slip in (1, -1, 2, -2, 10, -10) if result + slip >= 0])
    return Task(
        kind=KIND,
        skill="add" if adding else "subtract",
        key=f"{a}{sign}{b}",
        phrasing=phrasing,
        messages=user((_ADD if adding else _SUBTRACT)[phrasing].format(a=a, b=b)),
        answer=str(result),
        wrong=str(result + slip),
        note=f"{a} {sign} {b} = {result}",
    )
