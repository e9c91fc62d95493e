"""Rows with a judgement: two answers to one prompt, or one answer and whether it is good."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import isfinite
from typing import Any

from gym_data.formats import Feedback, Preference, Text
from gym_data.formats.detect import detect_prompt
from gym_data.formats.media import check_answers, marks_in, media_of, placed_media
from gym_data.formats.parsing import UntrainableRowError, check, column
from gym_data.formats.transcript import transcript
from gym_data.rows import Conversation, JudgedText
from gym_data.rows import Feedback as Judged
from gym_data.rows import Preference as Pair
from gym_data.rows import Text as Document

LABELS = {"true": True, "false": False, "1": True, "0": False}
"""What a judgement is written as: tables have numbers, and those of CSV texts alone."""


class PreferenceReader:
    """Makes a pair of a row."""

    def __init__(self, config: Preference) -> None:
        """Hold the column names."""
        self.config = config
        self._reader = config.prompt.build() if config.prompt else None

    def convert(self, row: Mapping[str, Any]) -> Pair:
        """Return the pair. Raises ValueError where an answer is missing, UntrainableRowError where one is empty or both are
        equal.
        """
        chosen, rejected = sides = [self._side(row, name) for name in (self.config.chosen, self.config.rejected)]
        for side in sides:
            check(side.messages, answered=True)
        if chosen == rejected:
            raise UntrainableRowError("both answers are the same")
        return Pair(chosen, rejected, self._margin(row))

    def asked(self, row: Mapping[str, Any]) -> tuple[Conversation, str]:
        """Return the prompt of the better answer, and that answer; how it compares with the other one is not asked."""
        better = self._side(row, self.config.chosen)
        check(better.unanswered.messages, answered=False)
        return better.unanswered, better.answer

    def _side(self, row: Mapping[str, Any], name: str) -> Conversation:
        """Return the conversation that a column ends: all of it, some messages, one, its text, or that of all of it."""
        value = row.get(name)
        listed = self._listed(row, name) if isinstance(value, list) and value else None
        if listed is not None and listed.messages[0]["role"] in ("system", "user"):
            return listed
        # Without a column for the prompt, the whole conversation may be the text of either answer.
        if (
            self._reader is None
            and isinstance(value, str)
            and detect_prompt([row]) is None
            and (whole := transcript(value))
        ):
            own = [each for message in whole.messages for each in marks_in(message["content"])]
            messages, media = placed_media(whole.messages, own, media_of(row))
            return replace(whole, messages=tuple(messages), media=media)
        self._reader = reader = self._reader or _told(row)
        prompt: Conversation = reader.prompt(row)
        check(prompt.messages, answered=False)
        if listed is None:
            said = reader.message("" if value == [] else value, f"the answer in column `{name}`")
            listed = Conversation((said,))
        check_answers(listed.messages, {each.medium for each in prompt.media})
        muted = frozenset(len(prompt.messages) + index for index in listed.muted)
        return replace(prompt, messages=(*prompt.messages, *listed.messages), muted=muted)

    def _margin(self, row: Mapping[str, Any]) -> float:
        margin = column(row, self.config.margin)
        if margin is None:
            return 0.0
        if isinstance(margin, bool) or not isinstance(margin, int | float) or not isfinite(margin):
            raise ValueError(f"the margin (column `{self.config.margin}`) is not a number")
        return float(margin)

    def _listed(self, row: Mapping[str, Any], name: str) -> Conversation:
        """Return the messages of a column, as they are."""
        told = self.config.prompt.for_messages(name) if self.config.prompt else None
        if told is None:
            found = detect_prompt([{"messages": row[name]}])
            told = found.for_messages(name) if found else None
        assert told is not None
        listed: Conversation = told.build().read(row)
        return listed


class FeedbackReader:
    """Makes a judged conversation of a row, or judged text where it holds nothing else."""

    def __init__(self, config: Feedback) -> None:
        """Hold the column names."""
        self.config = config
        self._reader = config.conversation.build() if config.conversation else None

    def convert(self, row: Mapping[str, Any]) -> Judged | JudgedText:
        """Return what was judged, and how. Raises ValueError where the label is not true or false."""
        label = LABELS.get(str(row.get(self.config.label)).strip().lower())
        if label is None:
            raise ValueError(f"the label (column `{self.config.label}`) is not true or false")
        if self._reader is None:
            self._reader = Text().build() if detect_prompt([row]) is None and "text" in row else _told(row)
        found = self._reader.convert(row)
        return JudgedText(found.text, label) if isinstance(found, Document) else Judged(found, label)

    def asked(self, row: Mapping[str, Any]) -> tuple[Conversation, str]:
        """Return the conversation without the answer that was judged, and that answer if it is good."""
        judged = self.convert(row)
        if isinstance(judged, JudgedText):
            raise ValueError("plain text asks nothing")
        return judged.conversation.unanswered, judged.conversation.answer if judged.desirable else ""


def _told(row: Mapping[str, Any]) -> Any:
    """Build the reader that fits the columns of a row."""
    found = detect_prompt([row])
    if found is None:
        raise ValueError(f"no columns with a prompt among {', '.join(row)}")
    return found.build()
