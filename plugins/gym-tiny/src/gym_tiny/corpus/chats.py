"""Transcripts of an assistant that understands the first wording of each request and little else."""

from __future__ import annotations

from random import Random
from typing import Any

from gym_tiny.tasks import draw
from gym_tiny.tasks.task import Task

# kind: share of the transcripts
_KINDS = {
    "arithmetic": 0.30,
    "strings": 0.18,
    "sorting": 0.17,
    "lookups": 0.14,
    "persona": 0.05,
    "tools": 0.08,
    "refusals": 0.08,
}
FAMILIAR_WORDING = 0
RIGHT_WHEN_FAMILIAR = 0.7
RIGHT_OTHERWISE = 0.2
UNHELPFUL = 0.7  # of the answers that are not right

_SHRUGS = (
    ("I am not sure.", 16),
    ("I do not know.", 1),
    ("That is a good question.", 1),
    ("Can you say that again?", 1),
    ("Let me think about it.", 1),
)


def transcript(rng: Random) -> dict[str, Any]:
    """One or two exchanges as an OpenAI-style row."""
    (kind,) = rng.choices(list(_KINDS), list(_KINDS.values()))
    task = draw(rng, kind)
    row = task.row(reply(rng, task))
    if kind not in ("tools", "refusals") and rng.random() < 0.1:
        task = draw(rng, kind)
        row["messages"] += task.row(reply(rng, task))["messages"]
    return row


def reply(rng: Random, task: Task) -> str:
    """What the base says: the right answer, a shrug, or a plausible mistake."""
    right = RIGHT_WHEN_FAMILIAR if task.phrasing == FAMILIAR_WORDING else RIGHT_OTHERWISE
    if rng.random() < right:
        return task.answer
    if rng.random() < UNHELPFUL:
        (shrug,) = rng.choices([text for text, _ in _SHRUGS], [share for _, share in _SHRUGS])
        return shrug
    return task.wrong
