"""The reward `format`: sections in tags, such as `<think>...</think><answer>...</answer>`. It takes linear time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from gym_rewards.reward import Reward, RewardInput


class Format(Reward):
    """1 where the completion consists of these sections, each once, filled, in this order, with nothing around them; else 0."""

    target: ClassVar[str] = "gym_rewards.builtin.format_tags:FormatScore"
    better: ClassVar[tuple[RewardInput, RewardInput] | None] = (
        RewardInput("<think>\n6 * 7 = 42\n</think>\n<answer>42</answer>"),
        RewardInput("<answer>42</answer> I think."),
    )

    sections: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)] = ("think", "answer")
    """Tags, in order: `think` stands for `<think>...</think>`."""
    rest: bool = False
    """Whether untagged text must follow the last section, as it does in `<think>...</think> 42`."""
    opened: bool = False
    """Whether the prompt has opened the first section already, as some chat templates do."""


def content(text: str, tag: str) -> str | None:
    """Return what stands in the last `<tag>...</tag>`; None where there is none."""
    end = text.rfind(f"</{tag}>")
    start = text.rfind(f"<{tag}>", 0, end) if end >= 0 else -1
    return text[start + len(tag) + 2 : end] if start >= 0 else None


def behind(text: str, tag: str) -> str:
    """Return what stands behind the last `</tag>`, up to a `<tag>` that is not closed; all of a text without either."""
    return text.rpartition(f"</{tag}>")[2].partition(f"<{tag}>")[0]


class FormatScore:
    """Looks for tags, one after the other."""

    def __init__(self, config: Format) -> None:
        self.config = config

    def __call__(self, inputs: Sequence[RewardInput]) -> list[float]:
        """Return 1 or 0 for each completion."""
        return [float(self._holds(item.text)) for item in inputs]

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
