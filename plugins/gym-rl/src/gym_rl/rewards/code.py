"""The score of programs: find the code in an answer and run it against the tests of its row."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gym_core.errors import GymError
from gym_rl.reward import Answer
from gym_rl.rewards import sandbox
from gym_rl.rewards.columns import column

if TYPE_CHECKING:
    from gym_rl.rewards import Code

_log = logging.getLogger(__name__)
_FENCE = re.compile(r"^[ \t]*```([^\n`]*)\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)
_LONGEST = 200_000  #: characters of a program


@dataclass(frozen=True)
class Dialogue:
    """A program passes when it prints this for that input; space at the ends of lines does not count."""

    given: str
    expected: str

    def passes(self, program: str, limits: sandbox.Limits, level: sandbox.Level) -> bool:
        """Run the program; raises GymError where there is no sandbox."""
        ended, printed = sandbox.run(program, limits, level, self.given)
        return ended and _lines(printed) == _lines(self.expected)


@dataclass(frozen=True)
class Assertions:
    """A program passes when this code, which calls its functions, runs to its end."""

    code: str

    def passes(self, program: str, limits: sandbox.Limits, level: sandbox.Level) -> bool:
        """Run the program and the test; raises GymError where there is no sandbox."""
        return sandbox.examine(program, self.code, limits, level)


Test = Dialogue | Assertions


class CodeScore:
    """Runs every test in a sandbox of its own, some answers at once."""

    def __init__(self, config: Code) -> None:
        """Raise GymError where the isolation that was asked for cannot be had."""
        self.config = config
        self.level = sandbox.strongest()
        if not self.level.namespaces:
            if config.isolation == "namespaces":
                raise GymError(
                    f"this machine permits no namespaces; the strongest isolation is `{self.level.name}`",
                    key="algorithm.rewards",
                    fix="allow user namespaces, or read docs/rewards.md and set `isolation: strongest`",
                )
            _log.warning(
                "programs are confined by `%s` alone: network and files are not out of their reach (docs/rewards.md)",
                self.level.name,
            )
        self._limits = sandbox.Limits(config.timeout, config.memory, config.processes, config.output)

    def __call__(self, answers: Sequence[Answer]) -> list[float]:
        """Return the share of passed tests, or 1 or 0, for each answer. Raises ValueError for a row without tests."""
        suites = [tests(column(answer, self.config.tests)) for answer in answers]
        with ThreadPoolExecutor(self.config.parallel) as pool:
            return list(pool.map(self._score, [program(answer.text) for answer in answers], suites))

    def _score(self, source: str, suite: Sequence[Test]) -> float:
        if not source.strip() or len(source) > _LONGEST:
            return 0.0
        passed = 0
        for number, test in enumerate(suite):
            passed += test.passes(source, self._limits, self.level)
            if passed <= number and not self.config.partial:
                return 0.0
        return passed / len(suite)


def program(text: str) -> str:
    """Return the last fenced block of Python or of no language; without any block, the whole text."""
    blocks = _FENCE.findall(text)
    fitting = [code for language, code in blocks if language.strip().lower() in ("", "py", "python", "python3")]
    return fitting[-1] if fitting else "" if blocks else text


def tests(value: Any) -> list[Test]:
    """Read the tests of a row. Raises ValueError for what is none."""
    if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
        with suppress(ValueError):  # code may begin with a bracket too
            value = json.loads(value)
    if isinstance(value, str) and value.strip():
        return [Assertions(value)]
    if isinstance(value, Mapping) and {"inputs", "outputs"} <= value.keys():
        return [
            Dialogue(_text(one), _text(other)) for one, other in zip(value["inputs"], value["outputs"], strict=True)
        ]
    if isinstance(value, Mapping) and {"input", "output"} <= value.keys():
        return [Dialogue(_text(value["input"]), _text(value["output"]))]
    if isinstance(value, list | tuple) and value:
        return [test for item in value for test in tests(item)]
    raise ValueError("the tests are neither code, nor `input` and `output`, nor a list of such")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]
