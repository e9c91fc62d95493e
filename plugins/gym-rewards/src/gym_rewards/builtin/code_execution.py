"""The score of programs: find the code in an answer and run it against the tests of its row."""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gym_rewards import sandbox
from gym_rewards.builtin.time_budget import Pace
from gym_rewards.builtin.unit_tests import Test, tests
from gym_rewards.reward import Answer
from gym_rewards.row_columns import column
from gym_rewards.sandbox import Verdict

if TYPE_CHECKING:
    from gym_rewards.builtin import Code

_log = logging.getLogger(__name__)
_FENCE = re.compile(r"^[ \t]*```([^\n`]*)\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)
_LONGEST = 200_000  #: characters of a program


@dataclass(frozen=True)
class Scored:
    """What a program earns, and what kept it from earning more that is not its own fault."""

    score: float = 0.0
    cut: bool = False  #: it was ended before its own time limit, for want of time for all
    unchecked: bool = False  #: a test did not ask it for anything, or could not


class CodeScore:
    """Runs every test in a sandbox of its own, some answers at once."""

    def __init__(self, config: Code) -> None:
        """Raise GymError where the isolation that was asked for cannot be had."""
        self.config = config
        self.level = sandbox.level(config.isolation)
        if not self.level.namespaces:
            _log.warning("programs are confined by Landlock, without namespaces: see `code` in docs/rewards.md")
        self.metrics: dict[
            str, list[float]
        ] = {}  #: shares of programs by which earn nothing, and not by their own fault
        self._limits = sandbox.Limits(config.timeout, config.memory, config.threads, config.output)

    def __call__(self, answers: Sequence[Answer], until: float = math.inf) -> list[float]:
        """Return the share of passed tests, or 1 or 0, for each answer, by a time of `time.monotonic`.

        What is not done by then earns 0. Raises ValueError for a row without tests.
        """
        sources = [program(answer.text) for answer in answers]
        suites = [self._tests(answer) for answer in answers]
        found: dict[int, Scored] = {}
        with ThreadPoolExecutor(self.config.parallel) as pool:
            # Who was cut short so that all get their turn gets another one in the time that the others left.
            for _ in range(2):
                again = [place for place in range(len(answers)) if place not in found or found[place].cut]
                pace = Pace(until, self.config.parallel, len(again))
                scored = pool.map(lambda place: self._score(sources[place], suites[place], pace), again)  # noqa: B023
                found |= dict(zip(again, scored, strict=True))
        self._tell(list(found.values()))
        return [found[place].score for place in range(len(answers))]

    def _tests(self, answer: Answer) -> list[Test]:
        row, config = answer.row, self.config
        return tests(
            column(answer, config.tests), str(row.get(config.entry_point) or ""), str(row.get(config.setup) or "")
        )

    def _score(self, source: str, suite: Sequence[Test], pace: Pace) -> Scored:
        share, began, wasted = pace.share(), time.monotonic(), 0.0
        if not source.strip() or len(source) > _LONGEST:
            return Scored()
        passed, cut, unchecked = 0, False, False
        for number, test in enumerate(suite):
            seconds = min(self._limits.seconds, share - wasted, pace.left())
            if seconds <= 0:
                cut = True
                break
            verdict = test.judge(source, replace(self._limits, seconds=seconds), self.level, self.config.tolerance)
            passed += verdict is Verdict.PASSED
            unchecked |= verdict is Verdict.UNCHECKED
            if verdict is Verdict.LATE:
                wasted += seconds
                cut |= seconds < self._limits.seconds
            if passed <= number and not self.config.partial:
                break
        pace.took(time.monotonic() - began - wasted)
        earned = passed / len(suite) if self.config.partial or passed == len(suite) else 0.0
        return Scored(earned, cut, unchecked)

    def _tell(self, scored: Sequence[Scored]) -> None:
        self.metrics.setdefault("out_of_time", []).extend(float(one.cut) for one in scored)
        self.metrics.setdefault("checked_nothing", []).extend(float(one.unchecked) for one in scored)
        cut, unchecked = sum(one.cut for one in scored), sum(one.unchecked for one in scored)
        if cut:
            _log.warning(
                "%d of %d programs were not tested to the end in the time for all of them, and earn nothing for what "
                "was left: raise `reward_timeout` or `parallel`, or lower `timeout`",
                cut,
                len(scored),
            )
        if unchecked:
            _log.warning(
                "%d of %d programs earn nothing: a test of theirs called nothing, or handed over what is no data",
                unchecked,
                len(scored),
            )


def program(text: str) -> str:
    """Return the last fenced block of Python or of no language; without any block, the whole text."""
    blocks = _FENCE.findall(text)
    fitting = [code for language, code in blocks if language.strip().lower() in ("", "py", "python", "python3")]
    return fitting[-1] if fitting else "" if blocks else text
