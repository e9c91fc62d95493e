"""`metrics.jsonl`: one JSON object a line, for programs."""

from __future__ import annotations

from gym_torch.loop.callbacks.json_lines_base import JsonLines
from gym_torch.observer import Progress, Record

FILE = "metrics.jsonl"


class Metrics(JsonLines):
    """Writes down every log line, every evaluation and every skipped step."""

    def logged(self, progress: Progress, record: Record) -> None:
        """Append the record."""
        self.append(record)

    def skipped(self, progress: Progress, record: Record) -> None:
        """Append the record."""
        self.append(record)

    def evaluated(self, progress: Progress, record: Record) -> None:
        """Append the record."""
        self.append(record)
