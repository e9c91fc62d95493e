"""A model family that travels inside its package, with its tokenizer, tasks and pre-training text."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import NonNegativeInt, PositiveInt

from gym_data import Source
from gym_data.kinds import Family

__version__ = "0.1.0"

__all__ = ["Tiny", "TinyCorpus", "TinyFeedback", "TinyPreferences", "TinySteps", "TinyTasks", "TinyTranscripts"]

Kind = Literal["arithmetic", "strings", "sorting", "lookups", "persona", "tools", "refusals"]


class Tiny(Family):
    """A Qwen3-shaped model of 1.6 million parameters that lies in its package: nothing is downloaded."""

    target: ClassVar[str] = "gym_tiny.family:locate"


class TinyTasks(Source):
    """Generated tasks with their right answers."""

    target: ClassVar[str] = "gym_tiny.sources:TaskRows"
    format: ClassVar[str] = "messages"

    count: PositiveInt = 4000
    """How many tasks."""
    split: Literal["train", "heldout"] = "train"
    """Which part of the task space; the parts are disjoint by content."""
    seed: NonNegativeInt = 0
    """Which tasks of that part."""
    task: Kind | None = None
    """The one kind of task wanted; without it, all kinds in turn."""


class TinyPreferences(Source):
    """Generated questions with two answers, the preferred one marked."""

    target: ClassVar[str] = "gym_tiny.sources:PreferenceRows"
    format: ClassVar[str] = "preference"

    count: PositiveInt = 3000
    """How many questions."""
    split: Literal["train", "heldout"] = "train"
    """Which part of the task space; the parts are disjoint by content."""
    seed: NonNegativeInt = 0
    """Which questions of that part."""
    about: Literal["format", "persona", "refusals"] | None = None
    """The one preference wanted; without it, all in turn."""


class TinyFeedback(TinyPreferences):
    """The same questions, each with one of its two answers and whether that is the preferred one."""

    target: ClassVar[str] = "gym_tiny.sources:FeedbackRows"
    format: ClassVar[str] = "feedback"


class TinySteps(TinyPreferences):
    """One to three of these questions at a time with an answer to each, judged one by one."""

    target: ClassVar[str] = "gym_tiny.sources:StepRows"
    format: ClassVar[str] = "stepwise"


class TinyCorpus(Source):
    """Generated plain text that holds the skills of the tasks."""

    target: ClassVar[str] = "gym_tiny.sources:DocumentRows"
    format: ClassVar[str] = "text"

    documents: PositiveInt = 26_400
    """How many texts."""
    seed: NonNegativeInt = 0
    """Which texts."""


class TinyTranscripts(Source):
    """Generated conversations with a mostly wrong or unhelpful assistant: the manners of the base."""

    target: ClassVar[str] = "gym_tiny.sources:TranscriptRows"
    format: ClassVar[str] = "messages"

    count: PositiveInt = 33_600
    """How many conversations."""
    seed: NonNegativeInt = 0
    """Which conversations."""
