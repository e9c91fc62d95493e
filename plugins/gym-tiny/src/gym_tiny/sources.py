"""The generators as sources of rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gym_data import Source
from gym_tiny import (
    TinyCorpus,
    TinyFeedback,
    TinyPreferences,
    TinySteps,
    TinyTasks,
    TinyTranscripts,
    corpus,
    preferences,
    tasks,
)

__all__ = ["DocumentRows", "FeedbackRows", "PreferenceRows", "StepRows", "TaskRows", "TranscriptRows"]

Row = dict[str, Any]


class TaskRows:
    """Rows `{"messages": [...], "tools": [...]}` of tasks with right answers."""

    def __init__(self, config: TinyTasks, **context: Any) -> None:
        self.config = config

    def rows(self) -> Iterator[Row]:
        """Yield the rows in a fixed order."""
        config = self.config
        return tasks.rows(config.task, config.count, config.seed, config.split)

    def fingerprint(self) -> str:
        """Return the identity of the rows."""
        return _fingerprint(self.config)


class PreferenceRows:
    """Rows `{"messages": [...], "chosen": {...}, "rejected": {...}}`."""

    def __init__(self, config: TinyPreferences, **context: Any) -> None:
        self.config = config

    def rows(self) -> Iterator[Row]:
        """Yield the rows in a fixed order."""
        config = self.config
        return (pair.row() for pair in preferences.pairs(config.about, config.count, config.seed, config.split))

    def fingerprint(self) -> str:
        """Return the identity of the rows."""
        return _fingerprint(self.config)


class FeedbackRows:
    """Rows `{"messages": [...], "label": ...}`."""

    def __init__(self, config: TinyFeedback, **context: Any) -> None:
        self.config = config

    def rows(self) -> Iterator[Row]:
        """Yield the rows in a fixed order."""
        config = self.config
        return preferences.judged(config.about, config.count, config.seed, config.split)

    def fingerprint(self) -> str:
        """Return the identity of the rows."""
        return _fingerprint(self.config)


class StepRows:
    """Rows `{"prompt": ..., "completions": [...], "labels": [...]}`."""

    def __init__(self, config: TinySteps, **context: Any) -> None:
        self.config = config

    def rows(self) -> Iterator[Row]:
        """Yield the rows in a fixed order."""
        config = self.config
        return preferences.stepwise(config.about, config.count, config.seed, config.split)

    def fingerprint(self) -> str:
        """Return the identity of the rows."""
        return _fingerprint(self.config)


class DocumentRows:
    """Rows `{"text": ...}` of plain documents."""

    def __init__(self, config: TinyCorpus, **context: Any) -> None:
        self.config = config

    def rows(self) -> Iterator[Row]:
        """Yield the rows in a fixed order."""
        return ({"text": text} for text in corpus.documents(self.config.documents, self.config.seed))

    def fingerprint(self) -> str:
        """Return the identity of the rows."""
        return _fingerprint(self.config)


class TranscriptRows:
    """Rows `{"messages": [...], "tools": [...]}` of the base model's conversations."""

    def __init__(self, config: TinyTranscripts, **context: Any) -> None:
        self.config = config

    def rows(self) -> Iterator[Row]:
        """Yield the rows in a fixed order."""
        return corpus.transcripts(self.config.count, self.config.seed)

    def fingerprint(self) -> str:
        """Return the identity of the rows."""
        return _fingerprint(self.config)


def _fingerprint(config: Source) -> str:
    """Hash the options and the generators' code, which together decide every row."""
    digest = hashlib.sha256(f"{type(config).__name__} {config.model_dump_json()}".encode())
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()
