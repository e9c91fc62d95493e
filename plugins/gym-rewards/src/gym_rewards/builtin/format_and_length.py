"""Scores of the outer shape of an answer: its sections and its length. Everything here takes linear time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gym_rewards.reward import Answer

if TYPE_CHECKING:
    from gym_rewards.builtin import Layout, Length, Overlong


def content(text: str, tag: str) -> str | None:
    """Return what stands in the last `<tag>...</tag>`; None where there is none."""
    end = text.rfind(f"</{tag}>")
    start = text.rfind(f"<{tag}>", 0, end) if end >= 0 else -1
    return text[start + len(tag) + 2 : end] if start >= 0 else None


class LayoutScore:
    """Looks for tags, one after the other."""

    def __init__(self, config: Layout) -> None:
        self.config = config

    def __call__(self, answers: Sequence[Answer]) -> list[float]:
        """Return 1 or 0 for each answer."""
        return [float(self._holds(answer.text)) for answer in answers]

    def _holds(self, text: str) -> bool:
        sections = self.config.sections
        if self.config.opened:
            text = f"<{sections[0]}>{text}"
        if any(text.count(mark) != 1 for tag in sections for mark in (f"<{tag}>", f"</{tag}>")):
            return False
        position = 0
        for tag in sections:
            start, end = text.find(f"<{tag}>", position), text.find(f"</{tag}>", position)
            if not 0 <= start < end or text[position:start].strip() or not text[start + len(tag) + 2 : end].strip():
                return False
            position = end + len(tag) + 3
        return bool(text[position:].strip()) == self.config.rest


class LengthScore:
    """Counts tokens."""

    def __init__(self, config: Length) -> None:
        self.config = config

    def __call__(self, answers: Sequence[Answer]) -> list[float]:
        """Return a number from 0 to 1 for each answer."""
        return [self._score(answer.tokens) for answer in answers]

    def _score(self, tokens: int) -> float:
        beyond = max(self.config.minimum - tokens, tokens - self.config.maximum, 0)
        return max(0.0, 1.0 - beyond / self.config.slack)


class OverlongScore:
    """The punishment of DAPO, arXiv:2503.14476, equation 13."""

    def __init__(self, config: Overlong) -> None:
        self.config = config

    def __call__(self, answers: Sequence[Answer]) -> list[float]:
        """Return a number from -1 to 0 for each answer."""
        free = self.config.maximum - self.config.buffer
        return [-min(1.0, max(0, answer.tokens - free) / self.config.buffer) + 0.0 for answer in answers]
