"""Python that a model writes and wants run: what it prints, as the model is shown it. Each program has a sandbox of its own."""

from __future__ import annotations

import ast

from gym_rewards import sandbox
from gym_rewards.sandbox import Verdict

LONGEST = 4000  #: letters that are shown, where nobody says how many


def run(program: str, seconds: float, longest: int = LONGEST) -> str:
    """Return what a program prints, so many letters at most, and how it failed.

    Raises GymError where programs cannot be confined here.
    """
    verdict, printed = sandbox.run(_reported(program), sandbox.Limits(seconds=seconds), sandbox.level("namespaces"))
    said = printed.strip()[:longest] or "(nothing was printed)"
    if verdict is Verdict.LATE:
        return f"{said}\nerror: it was ended after {seconds:g} s"
    return said if verdict is Verdict.PASSED else f"{said}\nerror: the program failed"


def as_notebook(source: str) -> str:
    """Return a program whose last expression is printed, unless it is None, as a notebook does."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return source  # the sandbox says what is wrong
    if tree.body and isinstance(last := tree.body[-1], ast.Expr):
        lines = source.encode().splitlines(keepends=True)  # columns count bytes
        begin, end = (sum(map(len, lines[: row - 1])) for row in (last.lineno, last.end_lineno or last.lineno))
        begin, end, text = begin + last.col_offset, end + (last.end_col_offset or 0), b"".join(lines)
        shown = b"(lambda it: it is None or print(it))((" + text[begin:end] + b"))"
        return (text[:begin] + shown + text[end:]).decode()
    return source


def _reported(program: str) -> str:
    """Return a program that prints the last line of its traceback: errors go elsewhere in the sandbox."""
    return (
        "import sys, traceback\n"
        f"try:\n    exec(compile({program!r}, 'program', 'exec'), {{'__name__': '__main__'}})\n"
        "except SystemExit:\n    raise\n"
        "except BaseException as error:\n"
        "    print(''.join(traceback.format_exception_only(error)).strip())\n    sys.stdout.flush()\n    sys.exit(1)\n"
    )
