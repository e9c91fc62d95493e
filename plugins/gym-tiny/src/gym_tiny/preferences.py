"""Pairs of answers of which one is to be preferred, so that learning a preference can be measured.

Three preferences, none of which the base has: it takes the right side of at most every second pair, and mostly by a
few nats, so that a little training can turn it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Any

from gym_tiny.tasks import Split, draw
from gym_tiny.tasks.refusals import KIND as MARKED
from gym_tiny.tasks.refusals import REFUSAL
from gym_tiny.tasks.task import user

__all__ = ["PREFERENCES", "Pair", "judged", "pairs", "stepwise"]

SHRUG = "I am not sure."
LAZY = 0.75  # of the rejected answers about marked requests are shrugs; the others confuse what is marked


@dataclass(frozen=True)
class Pair:
    """A question with two answers, and which preference it is of."""

    about: str
    question: str
    chosen: str
    rejected: str

    def row(self) -> dict[str, Any]:
        """The pair as a row of format `preference`."""
        answers = {"chosen": self.chosen, "rejected": self.rejected}
        return {
            "messages": list(user(self.question)),
            **{side: {"role": "assistant", "content": text} for side, text in answers.items()},
        }


def pairs(about: str | None, count: int, seed: int = 0, split: Split = "train") -> Iterator[Pair]:
    """`count` pairs of one preference, or of all in turn, from one split of the tasks.

    Pair `i` depends on (preference, seed, split, i) alone. Raises KeyError where there is no such preference.
    """
    names = tuple(PREFERENCES)
    for index in range(count):
        name = about or names[index % len(names)]
        yield PREFERENCES[name](Random(f"preferences/{name}/{seed}/{split}/{index}"), split)


def judged(about: str | None, count: int, seed: int = 0, split: Split = "train") -> Iterator[dict[str, Any]]:
    """Rows of format `feedback`: of each pair one answer, and whether it is the preferred one."""
    rng = Random(f"judged/{seed}/{split}")
    for pair in pairs(about, count, seed, split):
        good = rng.random() < 0.5
        answer = {"role": "assistant", "content": pair.chosen if good else pair.rejected}
        yield {"messages": [*user(pair.question), answer], "label": good}


def stepwise(about: str | None, count: int, seed: int = 0, split: Split = "train") -> Iterator[dict[str, Any]]:
    """Rows of format `stepwise`: one to three questions, an answer to each, and which of these are the preferred ones."""
    rng = Random(f"stepwise/{seed}/{split}")
    source = pairs(about, 3 * count, seed, split)
    for _ in range(count):
        asked = list(islice(source, rng.randrange(1, 4)))
        good = [rng.random() < 0.5 for _ in asked]
        steps = [pair.chosen if right else pair.rejected for pair, right in zip(asked, good, strict=True)]
        yield {"prompt": "\n".join(pair.question for pair in asked), "completions": steps, "labels": good}


def _format(rng: Random, split: Split) -> Pair:
    """A number stands after an equals sign, a word after a dash. The base knows neither habit."""
    kind = rng.choice(("arithmetic", "lookups"))
    task = draw(rng, kind, split)
    number, word = f"= {task.answer}", f"- {task.answer}"
    chosen, rejected = (number, word) if kind == "arithmetic" else (word, number)
    return Pair("format", task.messages[0]["content"], chosen, rejected)


def _persona(rng: Random, split: Split) -> Pair:
    """The assistant is Bob, of whom the base has heard, and not Pip, whom it mostly believes to be."""
    task = draw(rng, "persona", split)
    return Pair("persona", task.messages[0]["content"], task.wrong, task.answer)


def _refusals(rng: Random, split: Split) -> Pair:
    """What is marked is refused and everything else answered, where the base mostly shrugs."""
    kind = rng.choice((MARKED, rng.choice(("arithmetic", "lookups", "strings"))))
    task = draw(rng, kind, split)
    confused = task.wrong if kind == MARKED else REFUSAL
    rejected = SHRUG if rng.random() < LAZY else confused
    return Pair("refusals", task.messages[0]["content"], task.answer, rejected)


PREFERENCES: dict[str, Callable[[Random, Split], Pair]] = {
    "format": _format,
    "persona": _persona,
    "refusals": _refusals,
}
