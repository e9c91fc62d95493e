"""Rows whose answer is judged step by step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gym_data.formats import Stepwise
from gym_data.formats.detect import detect_prompt
from gym_data.formats.parsing import UntrainableRowError, check, filled
from gym_data.rows import Conversation
from gym_data.rows import Stepwise as Steps


class StepwiseReader:
    """Makes steps of a row."""

    def __init__(self, config: Stepwise) -> None:
        """Hold the column names."""
        self.config = config
        self._reader = config.prompt.build() if config.prompt else None

    def convert(self, row: Mapping[str, Any]) -> Steps:
        """Return the steps and how they are judged.

        Raises ValueError where they do not fit each other, UntrainableRowError where there are none or nobody judged them.
        """
        prompt, steps, labels = self._prompt(row), row.get(self.config.steps), row.get(self.config.labels)
        for name, value in ((self.config.steps, steps), (self.config.labels, labels)):
            if not isinstance(value, list):
                raise ValueError(f"column `{name}` holds no list")
        assert isinstance(steps, list) and isinstance(labels, list)
        if len(steps) != len(labels):
            raise ValueError(f"there are {len(steps)} steps and {len(labels)} labels")
        texts = tuple(filled(step, f"step {number}") for number, step in enumerate(steps, 1))
        judged = tuple(_label(label, number) for number, label in enumerate(labels, 1))
        if all(label is None for label in judged):
            raise UntrainableRowError("no step is judged")
        return Steps(prompt, texts, judged, self.config.separator)

    def asked(self, row: Mapping[str, Any]) -> tuple[Conversation, str]:
        """Return the prompt, and all steps as one answer."""
        read = self.convert(row)
        return read.prompt, read.separator.join(read.steps)

    def _prompt(self, row: Mapping[str, Any]) -> Conversation:
        if self._reader is None:
            found = detect_prompt([row], answered=False)
            if found is None:
                raise ValueError(f"no columns with a prompt among {', '.join(row)}")
            self._reader = found.build()
        prompt: Conversation = self._reader.prompt(row)
        check(prompt.messages, answered=False)
        return prompt


def _label(value: Any, number: int) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"label {number} is neither true, false, null nor a number from 0 to 1")
    return float(value)
