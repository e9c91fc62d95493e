"""An example of an environment: a number is to be guessed, and each wrong guess is told which way it is wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gym_rl.environment import Action, Message, StepResult


class GuessNumber:
    """One game; the number is the `answer` of the row."""

    def __init__(self, row: Mapping[str, Any], messages: Sequence[Message]) -> None:
        """Think of it."""
        self.number = int(row["answer"])

    def step(self, action: Action) -> StepResult:
        """Say whether the first number of a text is it: 1 where it is, and the game goes on where it is not."""
        found = re.search(r"-?[0-9]{1,9}", action.text)
        if found and int(found[0]) == self.number:
            return StepResult(reward=1.0)
        hint = "That is no number." if not found else "Higher." if int(found[0]) < self.number else "Lower."
        return StepResult([{"role": "user", "content": hint}])
