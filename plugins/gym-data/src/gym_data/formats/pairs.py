"""Rows with a judgement: two answers to one prompt, or one answer and whether it is good."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gym_data.formats import Feedback, Messages, Preference
from gym_data.formats.detect import detect_prompt
from gym_data.formats.parts import check
from gym_data.rows import Conversation, Message
from gym_data.rows import Feedback as Judged
from gym_data.rows import Preference as Pair


class PreferenceReader:
    """Makes a pair of a row."""

    def __init__(self, config: Preference) -> None:
        """Hold the column names."""
        self.config = config
        self._reader = config.prompt.build() if config.prompt else None

    def convert(self, row: Mapping[str, Any]) -> Pair:
        """Return the pair. Raises ValueError where an answer is missing or both are equal."""
        chosen, rejected = row.get(self.config.chosen), row.get(self.config.rejected)
        if isinstance(chosen, list) and isinstance(rejected, list):
            prompt, better, worse = self._whole(chosen, rejected)
        else:
            self._reader = reader = self._reader or _told(row)
            prompt = reader.prompt(row)
            better = reader.message(chosen, f"the answer in column `{self.config.chosen}`")
            worse = reader.message(rejected, f"the answer in column `{self.config.rejected}`")
        check(prompt.messages, answered=False)
        check((*prompt.messages, better), answered=True)
        check((*prompt.messages, worse), answered=True)
        if better == worse:
            raise ValueError("both answers are the same")
        return Pair(prompt, better, worse)

    def asked(self, row: Mapping[str, Any]) -> tuple[Conversation, str]:
        """Return the prompt of the pair, and the better answer."""
        pair = self.convert(row)
        return pair.prompt, str(pair.chosen["content"])

    def _whole(self, chosen: list[Any], rejected: list[Any]) -> tuple[Conversation, Message, Message]:
        """Split two whole conversations into the prompt they share and their last messages."""
        reader = Messages(messages=self.config.chosen).build()
        better = reader.convert({self.config.chosen: chosen})
        worse = reader.convert({self.config.chosen: rejected})
        if better.messages[:-1] != worse.messages[:-1]:
            raise ValueError("the two conversations differ before their last answers")
        return Conversation(better.messages[:-1]), better.messages[-1], worse.messages[-1]


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
