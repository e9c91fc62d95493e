"""The tests of a row, in the forms that data sets have them: asserts, `check(candidate)`, unittest, input and output, calls."""

from __future__ import annotations

import ast
import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol

from gym_rewards.sandbox import Level, Limits, Verdict, call, examine, run

_WHOLE = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")  #: `0011` is a text of digits
_NUMBER = re.compile(rf"(?:{_WHOLE.pattern}(?:\.[0-9]*)?|[-+]?\.[0-9]+)(?:[eE][-+]?[0-9]{{1,9}})?")
_PRINTED = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,9})?")


class Test(Protocol):
    """One test of a program."""

    @property
    def demands(self) -> bool:
        """Whether a program has to do something to pass it."""
        ...

    def judge(self, program: str, limits: Limits, level: Level, tolerance: float) -> Verdict:
        """Run the program against it; raises GymError where there is no sandbox.

        Where a decimal is expected, a number may differ by `tolerance`, or by this part of it.
        """
        ...


@dataclass(frozen=True)
class Dialogue:
    """A program passes when it prints this for that input, line by line, without the space around each.

    Lines of numbers are compared as numbers: `1.0` is `1`. So LiveCodeBench compares, but for the tolerance.
    """

    given: str
    expected: str

    @property
    def demands(self) -> bool:
        """Whether anything has to be printed."""
        return bool(self.expected.strip())

    def judge(self, program: str, limits: Limits, level: Level, tolerance: float) -> Verdict:
        """Run the program; what it printed is compared here."""
        verdict, printed = run(program, limits, level, self.given)
        if verdict is Verdict.PASSED and not _same(printed, self.expected, tolerance):
            return Verdict.FAILED
        return verdict


@dataclass(frozen=True)
class Assertions:
    """A program passes when this code, which calls its functions, runs to its end, with every `TestCase` in it."""

    code: str

    @property
    def demands(self) -> bool:
        """What code asks for is seen when it runs."""
        return True

    def judge(self, program: str, limits: Limits, level: Level, tolerance: float) -> Verdict:
        """Run the program, and the code beside it."""
        return examine(program, self.code, limits, level)


@dataclass(frozen=True)
class Call:
    """A program passes when its function, or the method of its class `Solution`, returns one of these values."""

    name: str
    arguments: Sequence[Any]
    expected: Sequence[Any]

    @property
    def demands(self) -> bool:
        """Whether anything has to be returned."""
        return any(value is not None for value in self.expected)

    def judge(self, program: str, limits: Limits, level: Level, tolerance: float) -> Verdict:
        """Run the program, and the call beside it."""
        return call(program, self.name, self.arguments, self.expected, limits, level, tolerance)


def tests(value: Any, entry_point: str = "", setup: str = "") -> list[Test]:
    """Read the tests of a row. `entry_point` is what `check(candidate)` is called with; `setup` comes before code.

    Raises ValueError for what is no test, for tests that nothing can fail or pass, and for tests that demand nothing.
    """
    suite = _read(value, entry_point, setup)
    if not any(test.demands for test in suite):
        raise ValueError("the tests are passed by a program that does nothing: they expect no output and no result")
    return suite


def _read(value: Any, entry_point: str, setup: str) -> list[Test]:
    if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
        with suppress(ValueError):  # code may begin with a bracket too
            value = json.loads(value)
    if isinstance(value, str) and value.strip():
        return [Assertions(_complete(f"{setup}\n{value}" if setup else value, entry_point))]
    if isinstance(value, list | tuple) and value:
        return [test for item in value for test in _read(item, entry_point, setup)]
    pairs = _pairs(value) if isinstance(value, Mapping) else []
    if pairs:
        name = _function(value, entry_point)
        return [_pair(name, one, other) for one, other in pairs]
    raise ValueError("the tests are neither code, nor `input` and `output`, nor a list of such")


def _pairs(value: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """Return what goes in and what must come out. Raises ValueError where there is more of one than of the other."""
    for given, expected in (("inputs", "outputs"), ("input", "output")):
        if {given, expected} <= value.keys():
            if isinstance(value[given], list | tuple) and isinstance(value[expected], list | tuple):
                return list(zip(value[given], value[expected], strict=True))
            return [(value[given], value[expected])]
    return []


def _complete(code: str, entry_point: str) -> str:
    """Return code with calls of what it defines and leaves to a harness to call. Raises ValueError where it tests nothing."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"the tests are no Python: {error}") from None
    for node in tree.body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Compare):
            raise ValueError(f"the tests compare and do nothing with the result: `{ast.unparse(node)}` needs `assert`")
    _importable(tree)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name not in used:
            needs = len(node.args.posonlyargs) + len(node.args.args) - len(node.args.defaults)
            if node.name == "check":
                if needs and not entry_point:
                    raise ValueError("the tests define `check` and do not call it, and the row has no `entry_point`")
                if needs and not re.fullmatch(r"[^\W\d].*", entry_point):
                    raise ValueError(f"`entry_point` names no function: {entry_point!r:.80}")
                function = f"__import__('solution').{entry_point}"  # whatever the test itself calls by that name
                code += f"\nassert check({function if needs else ''}) is not False\n"
            elif node.name.startswith("test"):
                if needs:
                    raise ValueError(
                        f"the tests want pytest: `{node.name}` takes arguments, and nobody gives them here"
                    )
                code += f"\nassert {node.name}() is not False\n"
    return code


def _importable(tree: ast.Module) -> None:
    """Raise ValueError where code imports what is not there."""
    for node in tree.body:
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module or "."] if isinstance(node, ast.ImportFrom) else []
        for module in modules:
            if module != "solution" and module.split(".")[0] not in sys.stdlib_module_names:
                raise ValueError(
                    f"the tests import `{module}`, and there is the standard library and the program as `solution`"
                )


def _function(value: Mapping[str, Any], entry_point: str) -> str:
    """Return the name of the function that is called, or nothing for tests of what a program reads and prints."""
    further = value.get("metadata")
    places = [value, further if isinstance(further, Mapping) else {}]
    name = next((place[key] for place in places for key in ("fn_name", "func_name") if place.get(key)), "")
    if name or value.get("testtype") != "functional":
        return str(name)
    if not entry_point:
        raise ValueError("the tests call a function, and neither `fn_name` nor the row's `entry_point` names it")
    return entry_point


def _pair(name: str, given: Any, expected: Any) -> Test:
    if not name:
        return Dialogue(_text(given), _text(expected))
    if isinstance(given, str):  # an argument in each line, as JSON, and the result as JSON
        arguments = [json.loads(line) for line in given.split("\n") if line.strip()]
        return Call(name, arguments, [json.loads(expected) if isinstance(expected, str) else expected])
    if not isinstance(given, list | tuple):
        raise ValueError(f"the arguments of `{name}` are no list: {given!r:.80}")
    # Some wrap the result in a list, as they do the arguments, and some do not.
    wrapped = expected if isinstance(expected, list | tuple) and len(expected) == 1 else []
    return Call(name, [_whole(argument) for argument in given], [expected, *wrapped])


def _whole(argument: Any) -> Any:
    """Return an argument whose keys are numbers again, which JSON writes as texts."""
    if isinstance(argument, Mapping):
        with suppress(ValueError):
            return {int(key): item for key, item in argument.items()}
    return argument


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _same(printed: str, expected: str, tolerance: float) -> bool:
    found, wanted = printed.strip().splitlines(), expected.strip().splitlines()
    return len(found) == len(wanted) and all(
        one.strip() == other.strip() or _same_numbers(one.split(), other.split(), tolerance)
        for one, other in zip(found, wanted, strict=True)
    )


def _same_numbers(found: Sequence[str], wanted: Sequence[str], tolerance: float) -> bool:
    return len(found) == len(wanted) and all(
        bool(_NUMBER.fullmatch(other) and _PRINTED.fullmatch(one))
        and (
            Decimal(one) == Decimal(other)
            or (
                not _WHOLE.fullmatch(other)
                and math.isclose(float(one), float(other), rel_tol=tolerance, abs_tol=tolerance)
            )
        )
        for one, other in zip(found, wanted, strict=True)
    )
