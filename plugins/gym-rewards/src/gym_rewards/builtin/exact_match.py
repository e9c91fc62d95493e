"""The reward `exact`: the text that the row expects."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import ClassVar

from gym_rewards.builtin.format_tags import content
from gym_rewards.reward import Reward, RewardInput
from gym_rewards.row_columns import several


class Exact(Reward):
    """1 where the completion is the text of the row, 0 where it is not."""

    target: ClassVar[str] = "gym_rewards.builtin.exact_match:ExactScore"
    better: ClassVar[tuple[RewardInput, RewardInput] | None] = (
        RewardInput("paris ", {"answer": "Paris"}),
        RewardInput("Rome", {"answer": "Paris"}),
    )

    answer: str = "answer"
    """Column of the expected text, or of a list of texts of which any will do."""
    section: str = ""
    """Tag whose content is compared, such as `answer` for `<answer>...</answer>`; without it, all of the completion."""
    case: bool = False
    """Whether capitals count."""
    punctuation: bool = True
    """Whether punctuation counts. Runs of white space never do."""


class ExactScore:
    """Compares texts, after what does not count is taken out of both."""

    def __init__(self, config: Exact) -> None:
        self.config = config

    def __call__(self, inputs: Sequence[RewardInput]) -> list[float]:
        """Return 1 or 0 for each completion. Raises ValueError for a row without the column."""
        return [float(self._matches(item)) for item in inputs]

    def _matches(self, item: RewardInput) -> bool:
        expected = [self._plain(str(value)) for value in several(item, self.config.answer)]
        said = content(item.text, self.config.section) if self.config.section else item.text
        return said is not None and self._plain(said) in expected

    def _plain(self, text: str) -> str:
        text = unicodedata.normalize("NFKC", text)
        if not self.config.case:
            text = text.casefold()
        if not self.config.punctuation:
            text = "".join(" " if unicodedata.category(letter).startswith("P") else letter for letter in text)
        return " ".join(text.split())
