"""Writes a folder of users: a small JSONL file each, with what that user likes, asked in two ways."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

LIKES = {
    "colour": ("red", "blue", "green", "black", "white", "brown", "yellow", "pink"),
    "animal": ("cat", "dog", "horse", "fish", "bird", "cow", "sheep", "duck"),
}
ASKED = ("Which {} do I like?", "Name my {}.")


def likes(user: int) -> dict[str, str]:
    """Return what a user likes, by kind."""
    draw = random.Random(user)
    return {kind: draw.choice(words) for kind, words in LIKES.items()}


def name(user: int) -> str:
    """Return what a user is called."""
    return f"user_{user:04d}"


def rows(user: int) -> list[dict[str, object]]:
    """Return the rows of a user."""
    return [
        {"messages": [{"role": "user", "content": ask.format(kind)}, {"role": "assistant", "content": word}]}
        for kind, word in likes(user).items()
        for ask in ASKED
    ]


def write(folder: Path, count: int) -> None:
    """Write the files of so many users."""
    folder.mkdir(parents=True, exist_ok=True)
    for user in range(count):
        text = "".join(json.dumps(row) + "\n" for row in rows(user))
        (folder / f"{name(user)}.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]))
