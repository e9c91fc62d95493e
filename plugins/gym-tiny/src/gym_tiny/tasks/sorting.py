"""Short lists of numbers, and of words with different first letters, put in order."""

from __future__ import annotations

from random import Random

from gym_tiny.tasks.task import Task, listing, user
from gym_tiny.tasks.words import WORDS

KIND = "sorting"

_NUMBERS_UP = (
    "Sort these numbers: {x}",
    "Put {x} in order from small to big.",
    "Order from lowest to highest: {x}",
    "Arrange {x} from low to high.",
)
_NUMBERS_DOWN = (
    "Sort these numbers from the biggest: {x}",
    "Put {x} in order from big to small.",
    "Order from highest to lowest: {x}",
    "Arrange {x} from high to low.",
)
_WORDS = (
    "Sort these words: {x}",
    "Put {x} in the order of the alphabet.",
    "Order from a to z: {x}",
    "Arrange {x} as in a word list.",
)


def make(rng: Random) -> Task:
    """One list; the key is the order asked for and the list as given."""
    skill, phrasings = rng.choice((("up", _NUMBERS_UP), ("down", _NUMBERS_DOWN), ("words", _WORDS)))
    if skill == "words":
        items, done = _words(rng)
    else:
        numbers = rng.sample(range(1, rng.choice((10, 50))), rng.choice((3, 3, 3, 4)))
        ordered = sorted(numbers, reverse=skill == "down")
        items, done = listing(numbers), listing(ordered)
    phrasing = rng.randrange(len(phrasings))
    mistake = items if items != done else listing(reversed(done.split(", ")))
    manner = {"up": "from low to high", "down": "from high to low", "words": "from a to z"}[skill]
    return Task(
        kind=KIND,
        skill=skill,
        key=f"{skill} {items}",
        phrasing=phrasing,
        messages=user(phrasings[phrasing].format(x=items)),
        answer=done,
        wrong=mistake,
        note=f"{items} {manner}: {done}",
    )


def _words(rng: Random) -> tuple[str, str]:
    by_initial = {word[0]: word for word in rng.sample(WORDS, 12)}
    chosen = rng.sample(sorted(by_initial.values()), 3)
    return listing(chosen), listing(sorted(chosen))
