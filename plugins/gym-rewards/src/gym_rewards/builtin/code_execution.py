"""The score of programs: find the code in a completion and run it against the tests of its row."""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt

from gym_rewards import sandbox
from gym_rewards.builtin.time_budget import TimeBudget
from gym_rewards.builtin.unit_tests import Test, tests
from gym_rewards.reward import Reward, RewardInput, Seconds
from gym_rewards.row_columns import column
from gym_rewards.sandbox import Verdict

_log = logging.getLogger(__name__)
_FENCE = re.compile(r"^[ \t]*```([^\n`]*)\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)
_LONGEST = 200_000  #: characters of a program


class Code(Reward):
    """1 where the Python program in the completion passes the tests of the row, in a sandbox; 0 where it does not.

    The program is the last fenced block, or the whole completion where there is none. What the sandbox keeps out is written in
    docs/rewards.md. It needs Linux.
    """

    target: ClassVar[str] = "gym_rewards.builtin.code_execution:CodeScore"
    own_timeout: ClassVar[bool] = True
    takes_deadline: ClassVar[bool] = True
    logs_metrics: ClassVar[bool] = True
    better: ClassVar[tuple[RewardInput, RewardInput] | None] = (
        RewardInput("```python\ndef double(x):\n    return 2 * x\n```", {"tests": ["assert double(4) == 8"]}),
        RewardInput("```python\ndef double(x):\n    return x ** 2\n```", {"tests": ["assert double(4) == 8"]}),
    )

    tests: str = "tests"
    """Column of the tests: code with assertions, with `check(candidate)` or with `unittest`, `{input, output}` pairs,
    `{inputs: [...], outputs: [...]}` and with `fn_name` calls of a function; or a list of such; or any of these as JSON text."""
    entry_point: str = "entry_point"
    """Column that names the function which `check(candidate)` is called with, where rows have one."""
    tolerance: Annotated[float, Field(ge=0, lt=1)] = 1e-6
    """How far a printed or returned number may be from an expected decimal (0.25, not 25), absolutely or in parts of it."""
    setup: str = "test_setup_code"
    """Column of code that comes before every test that is code, where rows have one."""
    partial: bool = False
    """Whether the share of passed tests is earned rather than all or nothing."""
    timeout: Seconds = 5.0
    """Seconds for one test; less where all completions together would not be done within `reward_timeout`."""
    memory: Annotated[int, Field(ge=64)] = 512
    """MiB of address space for a program."""
    threads: PositiveInt = 4
    """Threads that a program may have; other processes it never has."""
    output: PositiveInt = 1
    """MiB that a program may print; more fails the test."""
    parallel: PositiveInt = 2
    """Completions that are tested at once."""
    isolation: Literal["namespaces", "landlock"] = "namespaces"
    """What confines programs beside the filter of system calls; where it is missing, the run refuses to start.
    `landlock` is weaker: programs see which files there are, and can write none."""


@dataclass(frozen=True)
class Scored:
    """What a program earns, and what kept it from earning more that is not its own fault."""

    score: float = 0.0
    cut: bool = False  #: it was ended before its own time limit, for want of time for all
    unchecked: bool = False  #: a test did not ask it for anything, or could not


class CodeScore:
    """Runs every test in a sandbox of its own, some completions at once."""

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

    def __call__(self, inputs: Sequence[RewardInput], deadline: float = math.inf) -> list[float]:
        """Return the share of passed tests, or 1 or 0, for each completion, by a time of `time.monotonic`.

        What is not done by then earns 0. Raises ValueError for a row without tests.
        """
        sources = [program(item.text) for item in inputs]
        suites = [self._tests(item) for item in inputs]
        found: dict[int, Scored] = {}
        with ThreadPoolExecutor(self.config.parallel) as pool:
            # Who was cut short so that all get their turn gets another one in the time that the others left.
            for _ in range(2):
                again = [place for place in range(len(inputs)) if place not in found or found[place].cut]
                budget = TimeBudget(deadline, self.config.parallel, len(again))
                scored = pool.map(lambda place: self._score(sources[place], suites[place], budget), again)  # noqa: B023
                found |= dict(zip(again, scored, strict=True))
        self._tell(list(found.values()))
        return [found[place].score for place in range(len(inputs))]

    def _tests(self, item: RewardInput) -> list[Test]:
        row, config = item.row, self.config
        return tests(
            column(item, config.tests), str(row.get(config.entry_point) or ""), str(row.get(config.setup) or "")
        )

    def _score(self, source: str, suite: Sequence[Test], budget: TimeBudget) -> Scored:
        share, began, wasted = budget.share(), time.monotonic(), 0.0
        if not source.strip() or len(source) > _LONGEST:
            return Scored()
        passed, cut, unchecked = 0, False, False
        for number, test in enumerate(suite):
            seconds = min(self._limits.seconds, share - wasted, budget.left())
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
        budget.took(time.monotonic() - began - wasted)
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
