"""Writes the rows of this folder: questions, the sentences that answer them, and sentences that nearly do.

Run as `python recipes/embedding/facts.py`. No question of one file is in the other.
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from random import Random

WHO = ("baker", "doctor", "farmer", "painter", "sailor", "teacher", "tailor", "miller")
COLOURS = ("red", "green", "blue", "black", "white")
THINGS = ("kite", "lamp", "coat", "book", "drum", "ring", "boat", "cup")
PLACES = ("cellar", "attic", "garden", "kitchen", "barn", "hall")
QUESTIONS = (
    "Where does the {who} keep the {colour} {thing}?",
    "In which place is the {colour} {thing} of the {who}?",
)
COUNTS = {"train": 192, "heldout": 64}


Fact = tuple[str, str, str]


def said(fact: Fact, places: dict[Fact, str]) -> str:
    """Return the sentence that tells where a thing lies."""
    who, colour, thing = fact
    return f"The {thing} that is {colour} and belongs to the {who} lies in the {places[fact]}."


def row(fact: Fact, places: dict[Fact, str], rng: Random) -> dict[str, str]:
    """Return a question, its answer, and the place of a thing of another colour."""
    who, colour, thing = fact
    other = rng.choice([each for each in COLOURS if each != colour])
    return {
        "anchor": rng.choice(QUESTIONS).format(who=who, colour=colour, thing=thing),
        "positive": said(fact, places),
        "negative": said((who, other, thing), places),
    }


def main() -> None:
    """Write both files."""
    rng = Random(0)
    facts = list(product(WHO, COLOURS, THINGS))
    places = {fact: rng.choice(PLACES) for fact in facts}
    rng.shuffle(facts)
    for name, count in COUNTS.items():
        rows, facts = facts[:count], facts[count:]
        text = "".join(json.dumps(row(fact, places, rng)) + "\n" for fact in rows)
        Path(__file__).with_name(f"{name}.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
