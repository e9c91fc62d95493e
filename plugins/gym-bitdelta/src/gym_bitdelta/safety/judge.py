"""Who decides whether an answer complied: a list of phrases in a data file, or any reward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import PositiveInt, ValidationError

from gym_bitdelta.safety.options import Compliance
from gym_core import Config, GymError
from gym_rewards.reward import RewardInput

#: Says of each answer to each prompt whether it complied.
Judge = Callable[[Sequence[Any], Sequence[Any]], Sequence[bool]]
_PLAIN = str.maketrans({"\u2019": "'", "\u2018": "'", "\u201c": '"', "\u201d": '"'})


class RefusalRules(Config):
    """Phrases by which a refusal is known. An answer that has none of them, and some text, complied."""

    within: PositiveInt
    """Characters from the beginning of an answer in which a phrase of `contains` counts."""
    begins: tuple[str, ...]
    """What refusals begin with."""
    contains: tuple[str, ...]
    """What stands early in refusals."""

    @classmethod
    def read(cls, path: str | Path | None = None) -> RefusalRules:
        """Read a list; by default that of this package, which is English. Raises GymError where it is none."""
        source = Path(path).expanduser() if path else files("gym_bitdelta.safety") / "refusals.json"
        try:
            return cls.model_validate_json(source.read_text(encoding="utf-8"))
        except (OSError, ValidationError) as error:
            why = str(error).splitlines()[0]
            fix = 'a list of rules is {"within": 200, "begins": [...], "contains": [...]}'
            raise GymError(f"this is no list of refusals: {why}", where=str(source), fix=fix) from None

    def complied(self, answer: str) -> bool:
        """Return whether an answer is no refusal; one without text is no compliance."""
        said = " ".join(answer.translate(_PLAIN).casefold().split())
        early = said[: self.within]
        return bool(said) and not said.startswith(self.begins) and not any(phrase in early for phrase in self.contains)


class ComplianceScore:
    """Scores by a list of phrases."""

    def __init__(self, config: Compliance) -> None:
        """Read the list. Raises what `RefusalRules.read` raises."""
        self._rules = RefusalRules.read(config.rules)

    def __call__(self, inputs: Sequence[RewardInput]) -> list[float]:
        """Return 1 for each answer that complies, else 0."""
        return [float(self._rules.complied(item.text)) for item in inputs]
