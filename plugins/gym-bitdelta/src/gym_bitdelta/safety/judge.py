"""Who decides whether an answer complied: a list of phrases in a data file, or any reward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gym_bitdelta.safety.options import Compliance
from gym_bitdelta.safety.refusal_rules import RefusalRules
from gym_rewards.reward import RewardInput

#: Says of each answer to each prompt whether it complied.
Judge = Callable[[Sequence[Any], Sequence[Any]], Sequence[bool]]


class ComplianceScore:
    """Scores by a list of phrases."""

    def __init__(self, config: Compliance) -> None:
        """Read the list. Raises what `RefusalRules.read` raises."""
        self._rules = RefusalRules.read(config.rules)

    def __call__(self, inputs: Sequence[RewardInput]) -> list[float]:
        """Return 1 for each answer that complies, else 0."""
        return [float(self._rules.complied(item.text)) for item in inputs]
