"""Operations on short words; where every letter matters, they are written with spaces between the letters."""

from __future__ import annotations

from random import Random

from gym_tiny.tasks.task import Task, user
from gym_tiny.tasks.words import WORDS, letters

KIND = "strings"

_PHRASINGS = {
    "reverse": (
        "Reverse these letters: {x}",
        "Write {x} backwards.",
        "Spell {x} from the end to the start.",
        "Turn around: {x}",
    ),
    "upper": (
        "Write these letters in capitals: {x}",
        "Make {x} upper case.",
        "Change {x} to big letters.",
        "Capitals, please: {x}",
    ),
    "first": (
        "What is the first letter of {x}?",
        "Give the first letter of the word {x}.",
        "Which letter does {x} start with?",
        "First letter: {x}",
    ),
    "repeat": (
        "Repeat the word {x} {n} times.",
        "Say {x} {n} times.",
        "Write {x} {n} times over.",
        "{n} times, please: {x}",
    ),
}


def make(rng: Random) -> Task:
    """One operation on one word.

    The key is the operation and the answer, so a held-out word is unseen in every wording; but a first letter
    is a fact, as in `lookups`, and its key is the whole question.
    """
    skill = rng.choice(sorted(_PHRASINGS))
    phrasing = rng.randrange(4)
    times = rng.randrange(2, 5)
    spaced, word = letters(rng), rng.choice(WORDS)
    text = " ".join(spaced)
    if skill == "reverse":
        shown, answer, wrong = text, " ".join(reversed(spaced)), text
        note = f"{text} backwards is {answer}"
    elif skill == "upper":
        shown, answer, wrong = text, text.upper(), text
        note = f"{text} in capitals is {answer}"
    elif skill == "first":
        shown, answer, wrong = word, word[0], word[-1]
        note = f"The word {word} starts with {answer}"
    else:
        shown, answer, wrong = word, " ".join([word] * times), " ".join([word] * (times + 1))
        note = f"{word} {times} times is {answer}"
    question = _PHRASINGS[skill][phrasing].format(x=shown, n=times)
    return Task(
        kind=KIND,
        skill=skill,
        key=question if skill == "first" else f"{skill} {answer}",
        phrasing=phrasing,
        messages=user(question),
        answer=answer,
        wrong=rng.choice(WORDS) if wrong == answer else wrong,
        note=note,
    )
