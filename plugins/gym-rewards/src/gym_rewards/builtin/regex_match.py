"""The reward `regex`: a pattern that is searched for in another process, which is ended when it takes too long."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field, field_validator

from gym_rewards.reward import Reward, RewardInput, Seconds
from gym_rewards.worker_process import Worker


class Regex(Reward):
    """1 where a pattern is found in the completion, 0 where it is not or where the search takes too long."""

    target: ClassVar[str] = "gym_rewards.builtin.regex_match:RegexScore"
    own_timeout: ClassVar[bool] = True
    better: ClassVar[tuple[RewardInput, RewardInput] | None] = (RewardInput("It is 42."), RewardInput("No idea."))

    pattern: Annotated[str, Field(examples=[r"\d+"])]
    """Regular expression of Python."""
    full: bool = False
    """Whether all of the completion must match."""
    ignore_case: bool = False
    """Whether capitals are the same as small letters."""
    timeout: Seconds = 1.0
    """Seconds for one completion."""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"is no regular expression: {error}") from None
        return pattern


class RegexScore:
    """Searches a pattern in another process, which is ended when it takes too long."""

    def __init__(self, config: Regex) -> None:
        self.config = config
        self._search = Worker(f"{__name__}:found", config.timeout)

    def __call__(self, inputs: Sequence[RewardInput]) -> list[float]:
        """Return 1 or 0 for each completion."""
        return [float(self._found(item.text)) for item in inputs]

    def _found(self, text: str) -> bool:
        try:
            return bool(self._search(self.config.pattern, text, self.config.full, self.config.ignore_case))
        except TimeoutError:
            return False


def found(pattern: str, text: str, full: bool, ignore_case: bool) -> bool:
    """Search in this process."""
    compiled = re.compile(pattern, re.IGNORECASE if ignore_case else 0)
    return (compiled.fullmatch if full else compiled.search)(text) is not None
