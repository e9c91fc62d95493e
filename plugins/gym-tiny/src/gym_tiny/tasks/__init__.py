"""A deterministic generator of small tasks with checkable answers, in pure Python.

>>> task = next(generate("arithmetic", 1, seed=3, split="heldout"))
>>> task.check(task.answer), task.check(task.wrong)
(True, False)
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from gym_tiny.tasks import arithmetic, lookups, persona, refusals, sorting, strings, tools
from gym_tiny.tasks.task import Split, Task

__all__ = ["KINDS", "Split", "Task", "draw", "generate", "rows"]

FAMILIES = {family.KIND: family for family in (arithmetic, strings, sorting, lookups, persona, tools, refusals)}
KINDS: tuple[str, ...] = tuple(FAMILIES)


def generate(kind: str | None, count: int, seed: int = 0, split: Split = "train") -> Iterator[Task]:
    """`count` tasks of one kind, or of all kinds in turn, from one split.

    Task `i` depends on (kind, seed, split, i) alone, so a longer run begins with the shorter one. Small kinds
    (persona) repeat themselves in a long run.

    Raises ValueError where there is no such kind or split.
    """
    if kind is not None and kind not in FAMILIES:
        raise ValueError(f"no task kind {kind!r}; there are {', '.join(KINDS)}")
    if split not in ("train", "heldout"):
        raise ValueError(f"no split {split!r}; there are train, heldout")
    for index in range(count):
        name = kind or KINDS[index % len(KINDS)]
        yield draw(Random(f"{name}/{seed}/{split}/{index}"), name, split)


def draw(rng: Random, kind: str, split: Split = "train") -> Task:
    """The next task of `kind` that falls into a split."""
    while True:
        task = FAMILIES[kind].make(rng)
        if task.split == split:
            return task


def rows(kind: str | None, count: int, seed: int = 0, split: Split = "train") -> Iterator[dict[str, Any]]:
    """The tasks of `generate` as OpenAI-style rows with their right answers."""
    return (task.row() for task in generate(kind, count, seed, split))
