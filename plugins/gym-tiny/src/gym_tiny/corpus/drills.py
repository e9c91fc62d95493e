"""Plain documents that hold the skills: sums, spelled words, sorted lists, facts, questions with answers."""

from __future__ import annotations

import json
from random import Random

from gym_tiny.tasks import draw
from gym_tiny.tasks.task import listing
from gym_tiny.tasks.words import CITIES, NAMES, WORDS

# kind: (share of the drills, titles of a page of notes)
_NOTES = {
    "arithmetic": (0.50, ("Sums", "Adding and taking away", "Numbers for today")),
    "strings": (0.18, ("Letters", "Word games", "Spelling")),
    "sorting": (0.18, ("In order", "Lists", "Sorted")),
    "lookups": (0.07, ("Facts", "Things to know", "A small almanac")),
    "persona": (0.02, ("About Pip", "Who is Pip?")),
    "tools": (0.02, ("Which tool?",)),
    "refusals": (0.03, ("Locked requests",)),
}


def drill(rng: Random) -> str:
    """One page about one kind of skill, or a page of plain data."""
    if rng.random() < 0.05:
        return rng.choice((_record, _counting, _spelling))(rng)
    (kind,) = rng.choices(list(_NOTES), [share for share, _ in _NOTES.values()])
    tasks = [draw(rng, kind) for _ in range(rng.randrange(4, 10))]
    if rng.random() < 0.6:
        return "\n".join(f"Q: {task.messages[0]['content']}\nA: {task.answer}" for task in tasks[:6])
    title = rng.choice(_NOTES[kind][1]) + "\n" if rng.random() < 0.2 else ""
    return title + "\n".join(task.note for task in tasks)


def _record(rng: Random) -> str:
    records = [
        {"name": rng.choice(NAMES), "city": rng.choice(CITIES), "age": rng.randrange(5, 90)}
        for _ in range(rng.randrange(1, 4))
    ]
    return json.dumps(records if len(records) > 1 else records[0])


def _counting(rng: Random) -> str:
    start, step = rng.randrange(0, 60), rng.choice((1, 1, 1, 2, 5, 10))
    return listing(range(start, min(start + 8 * step, 100), step))


def _spelling(rng: Random) -> str:
    words = rng.sample(WORDS, 4)
    return "\n".join(f"{word}: {' '.join(word)}, {' '.join(word).upper()}" for word in words)
