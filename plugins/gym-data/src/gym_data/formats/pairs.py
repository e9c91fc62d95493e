"""Rows with a judgement: two answers to one prompt, or one answer and whether it is good."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import isfinite
from typing import Any

from gym_data.formats import Feedback, Messages, Preference, ShareGPT, Turns
from gym_data.formats.detect import detect_prompt
from gym_data.formats.parts import Unlearnable, blank, check, column
from gym_data.rows import Conversation
from gym_data.rows import Feedback as Judged
from gym_data.rows import Preference as Pair


class PreferenceReader:
    """Makes a pair of a row."""

    def __init__(self, config: Preference) -> None:
        """Hold the column names."""
        self.config = config
        self._reader = config.prompt.build() if config.prompt else None

    def convert(self, row: Mapping[str, Any]) -> Pair:
        """Return the pair. Raises ValueError where an answer is missing, Unlearnable where one is empty or both are equal."""
        sides = [self._side(row, name) for name in (self.config.chosen, self.config.rejected)]
        if any(blank(side.messages[-1]) for side in sides):
            raise Unlearnable("an answer is empty")
        for side in sides:
            check(side.messages, answered=True)
        better, worse = sides
        if better.messages == worse.messages:
            raise Unlearnable("both answers are the same")
        prompt, other = better.before, worse.before
        return Pair(
            prompt,
            better.messages[-1],
            worse.messages[-1],
            rejected_prompt=None if prompt == other else other,
            margin=self._margin(row),
        )

    def asked(self, row: Mapping[str, Any]) -> tuple[Conversation, str]:
        """Return the prompt of the pair, and the better answer."""
        pair = self.convert(row)
        return pair.prompt, str(pair.chosen["content"])

    def _side(self, row: Mapping[str, Any], name: str) -> Conversation:
        """Return one answer after its prompt, from a whole conversation, or from what continues the one of the row."""
        given = row.get(name)
        if not isinstance(given, list):
            prompt = self._prompt(row)
            message = self._reader.message(given, f"the answer in column `{name}`")
            return replace(prompt, messages=(*prompt.messages, message))
        read = self._turns(given).model_copy(update={"messages": name}).build().read(row)
        if not read.messages:
            raise ValueError(f"column `{name}` holds no messages")
        if read.messages[0]["role"] in ("system", "user"):
            return read
        prompt = self._prompt(row)
        return replace(prompt, messages=(*prompt.messages, *read.messages))

    def _prompt(self, row: Mapping[str, Any]) -> Conversation:
        self._reader = self._reader or _told(row)
        prompt: Conversation = self._reader.prompt(row)
        return prompt

    def _turns(self, messages: list[Any]) -> Turns:
        """Return how messages are written: as those of the prompt are, else as their first one tells."""
        if isinstance(self.config.prompt, Turns):
            return self.config.prompt
        first = messages[0] if messages else None
        return ShareGPT() if isinstance(first, Mapping) and "from" in first else Messages()

    def _margin(self, row: Mapping[str, Any]) -> float:
        margin = column(row, self.config.margin)
        if margin is None:
            return 0.0
        if isinstance(margin, bool) or not isinstance(margin, int | float) or not isfinite(margin):
            raise ValueError(f"the margin (column `{self.config.margin}`) is not a number")
        return float(margin)


class FeedbackReader:
    """Makes a judged conversation of a row."""

    def __init__(self, config: Feedback) -> None:
        """Hold the column names."""
        self.config = config
        self._reader = config.conversation.build() if config.conversation else None

    def convert(self, row: Mapping[str, Any]) -> Judged:
        """Return the conversation and its judgement. Raises ValueError where the label is not true or false."""
        label = row.get(self.config.label)
        if not isinstance(label, bool):
            raise ValueError(f"the label (column `{self.config.label}`) is not true or false")
        self._reader = self._reader or _told(row)
        return Judged(self._reader.convert(row), label)

    def asked(self, row: Mapping[str, Any]) -> tuple[Conversation, str]:
        """Return the conversation without the answer that was judged, and that answer if it is good."""
        judged = self.convert(row)
        return judged.conversation.unanswered, judged.conversation.answer if judged.good else ""


def _told(row: Mapping[str, Any]) -> Any:
    """Build the reader that fits the columns of a row."""
    found = detect_prompt([row])
    if found is None:
        raise ValueError(f"no columns with a prompt among {', '.join(row)}")
    return found.build()
