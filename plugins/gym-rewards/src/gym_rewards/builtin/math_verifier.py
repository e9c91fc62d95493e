r"""The score of verifiable mathematics: find the result of a completion, and compare it with that of the row."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from typing import ClassVar

from gym_core.errors import PluginError
from gym_rewards.builtin.format_tags import behind, content
from gym_rewards.builtin.number_parsing import numbers_in, plain, readings
from gym_rewards.reward import Reward, RewardInput, Seconds
from gym_rewards.row_columns import several
from gym_rewards.worker_process import Raised, Worker

_LONGEST = 100_000  #: characters from the end of a completion that are looked at
_BOXED = re.compile(r"\\f?boxed\s*\{")
_SAID = re.compile(r"answer\s{0,9}(?:is|=|:)(?:\s{0,9}:)?", re.IGNORECASE)
_SENTENCE = re.compile(r"[.!?](?:\s|$)|\n")
_CHOICE = re.compile(r"\(?([A-Za-z])\)?\.?")
_PARTS = re.compile(r"[,;]|\b(?:and|or)\b")
_SAME = re.compile(r"\\(?:d|t|c)frac")


class Math(Reward):
    r"""1 where the completion's result is that of the row, 0 where it is not; numbers are compared exactly, as fractions.

    The result is the last `\boxed{}`, else what follows the last `####`, else the last "the answer is", else the last number,
    of what stands behind the thoughts.
    """

    target: ClassVar[str] = "gym_rewards.builtin.math_verifier:MathScore"
    own_timeout: ClassVar[bool] = True
    better: ClassVar[tuple[RewardInput, RewardInput] | None] = (
        RewardInput("Half of 84 is \\boxed{42}.", {"answer": "84 / 2 = 42\n#### 42"}),
        RewardInput("Half of 84 is \\boxed{41}.", {"answer": "84 / 2 = 42\n#### 42"}),
    )

    answer: str = "answer"
    """Column of the true result: a number, its text, or a solution that marks it as a completion does; or a list of them."""
    section: str = ""
    """Tag whose content holds the result, such as `answer` for `<answer>...</answer>`; without it, all behind the thoughts."""
    thought: str = "think"
    """Tag of thoughts, in which no result is looked for; one that does not end leaves none behind it. Empty: all is looked at
    (`reasoning_delimiters` in TRL)."""
    marked: bool = False
    """Whether only a marked result counts: boxed, after `####` or after "the answer is"."""
    latex: bool = False
    """Whether what is no number is compared as mathematics, through math-verify (`pip install gym-rewards[math]`)."""
    timeout: Seconds = 5.0
    """Seconds for math-verify to compare one completion; one that takes longer earns 0."""

    def check(self) -> None:
        """Raise PluginError where LaTeX is asked for and math-verify is not installed."""
        if self.latex and importlib.util.find_spec("math_verify") is None:
            raise PluginError(
                "`latex: true` needs math-verify, which is not installed",
                key="algorithm.rewards",
                fix="pip install 'gym-rewards[math]'",
            )


class MathScore:
    """Compares results: numbers as fractions, the rest as text, or as LaTeX when asked to."""

    def __init__(self, config: Math) -> None:
        """Raise PluginError where LaTeX is asked for and math-verify is not installed."""
        config.check()
        self.config = config
        self._verify = Worker("gym_rewards.builtin.latex_equivalence:verified", config.timeout)

    def __call__(self, inputs: Sequence[RewardInput]) -> list[float]:
        """Return 1 or 0 for each completion. Raises ValueError for a row without a result."""
        return [float(self._right(item)) for item in inputs]

    def _right(self, item: RewardInput) -> bool:
        expected = [reference(str(value)) for value in several(item, self.config.answer)]
        found = results(self._judged(item.text), self.config.marked)
        return any(equal(one, other) for one in found for other in expected) or (
            self.config.latex and any(self._verified(one, other) for one in found for other in expected)
        )

    def _judged(self, text: str) -> str:
        """Return the part of a completion that the result is looked for in."""
        config = self.config
        text = behind(text, config.thought) if config.thought else text
        return (content(text, config.section) or "") if config.section else text

    def _verified(self, found: str, expected: str) -> bool:
        if readings(found) and readings(expected):
            return False
        try:
            return bool(self._verify(expected, found))
        except (TimeoutError, Raised):
            return False


def reference(text: str) -> str:
    """Return the result of a solution: what it marks, else all of it. Raises ValueError where that is blank."""
    result = (_marked(text) or text).strip()
    if not result:
        raise ValueError("the expected result is blank")
    return result


def results(text: str, marked: bool = False) -> list[str]:
    """Return what may be the result of a completion: the marked one, else the whole of a short completion and its last number."""
    text = text[-_LONGEST:]
    found = _marked(text)
    if found is not None:
        return [found]
    if marked or not text.strip():
        return []
    numbers = numbers_in(text)
    return [text.strip(), *numbers[-1:]]


def equal(found: str, expected: str) -> bool:
    r"""Whether two results are the same number, or the same text but for spaces and LaTeX's looks."""
    found, expected = (text.rpartition("=")[2] if _assigns(text) else text for text in (found, expected))
    one, other = readings(found), readings(expected)
    if one or other:
        return bool(one & other)
    return bool(_canonical(expected)) and _canonical(found) == _canonical(expected)


def _marked(text: str) -> str | None:
    boxed = _boxed(text)
    if boxed is not None:
        return boxed
    _, mark, after = text.rpartition("####")
    if mark:
        return after.strip().split("\n")[0]
    ends = [said.end() for said in _SAID.finditer(text)]
    if not ends:
        return None
    after = text[ends[-1] :].lstrip(" *_:\n")
    stop = _SENTENCE.search(after)
    return (after[: stop.start()] if stop else after).strip(" *_`\"'")


def _boxed(text: str) -> str | None:
    """Return the content of the last box that is closed."""
    starts = [found.end() for found in _BOXED.finditer(text)]
    for start in reversed(starts[-8:]):
        depth = 1
        for position in range(start, len(text)):
            depth += {"{": 1, "}": -1}.get(text[position], 0)
            if depth == 0:
                return text[start:position].strip()
    return None


def _assigns(text: str) -> bool:
    """Whether a result says what it is the value of, and of one thing alone: `x = 5`, `10 - 4 = 6`, not `x = 5 or x = 3`."""
    said = [part for part in _PARTS.split(text) if "=" in part]
    return len(said) == 1 and not re.search(r"[<>!\\]=|=[<>=]", text)


def _canonical(text: str) -> str:
    text = _SAME.sub(r"\\frac", plain(text)).strip().rstrip(".")
    choice = _CHOICE.fullmatch(text)
    return choice[1].upper() if choice else re.sub(r"\s+", "", text)
