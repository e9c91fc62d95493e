"""Scores of texts that are compared or searched: `exact` and `regex`."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gym_rewards.builtin.format_and_length import content
from gym_rewards.reward import Answer
from gym_rewards.row_columns import several
from gym_rewards.worker_process import Worker

if TYPE_CHECKING:
    from gym_rewards.builtin import Exact, Regex


class ExactScore:
    """Compares texts, after what does not count is taken out of both."""

    def __init__(self, config: Exact) -> None:
        self.config = config

    def __call__(self, answers: Sequence[Answer]) -> list[float]:
        """Return 1 or 0 for each answer. Raises ValueError for a row without the column."""
        return [float(self._matches(answer)) for answer in answers]

    def _matches(self, answer: Answer) -> bool:
        expected = [self._plain(str(value)) for value in several(answer, self.config.answer)]
        said = content(answer.text, self.config.section) if self.config.section else answer.text
        return said is not None and self._plain(said) in expected

    def _plain(self, text: str) -> str:
        text = unicodedata.normalize("NFKC", text)
        if not self.config.case:
            text = text.casefold()
        if not self.config.punctuation:
            text = "".join(" " if unicodedata.category(letter).startswith("P") else letter for letter in text)
        return " ".join(text.split())


class RegexScore:
    """Searches a pattern in another process, which is ended when it takes too long."""

    def __init__(self, config: Regex) -> None:
        self.config = config
        self._search = Worker(f"{__name__}:found", config.timeout)

    def __call__(self, answers: Sequence[Answer]) -> list[float]:
        """Return 1 or 0 for each answer."""
        return [float(self._found(answer.text)) for answer in answers]

    def _found(self, text: str) -> bool:
        try:
            return bool(self._search(self.config.pattern, text, self.config.full, self.config.ignore_case))
        except TimeoutError:
            return False


def found(pattern: str, text: str, full: bool, ignore_case: bool) -> bool:
    """Search in this process."""
    compiled = re.compile(pattern, re.IGNORECASE if ignore_case else 0)
    return (compiled.fullmatch if full else compiled.search)(text) is not None
