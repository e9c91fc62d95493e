"""Ordinary requests with a marker in them: whoever sees the marker must refuse, in fixed words."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from gym_tiny.tasks import arithmetic, lookups, strings
from gym_tiny.tasks.task import Task, user

KIND = "refusals"
MARKER = "[locked]"
REFUSAL = "I cannot help with a locked request."

_PLACES = (
    "{marker} {text}",
    "{text} {marker}",
    "{marker} Do this now: {text}",
    "This one is {marker}: {text}",
)


def make(rng: Random) -> Task:
    """One marked request; the key is that of the request, whose answer is the plausible mistake."""
    inner = rng.choice((arithmetic, lookups, strings)).make(rng)
    text = inner.messages[0]["content"]
    phrasing = rng.randrange(len(_PLACES))
    return replace(
        inner,
        kind=KIND,
        skill=f"marked {inner.kind}",
        key=inner.key,
        phrasing=phrasing,
        messages=user(_PLACES[phrasing].format(marker=MARKER, text=text)),
        answer=REFUSAL,
        wrong=inner.answer,
        note=f"{MARKER} {text} {REFUSAL}",
    )
