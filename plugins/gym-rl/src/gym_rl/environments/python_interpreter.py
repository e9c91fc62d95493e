"""A tool: Python that the model writes, without network or files of the machine."""

from __future__ import annotations

from gym_rewards.sandbox import interpreter

SECONDS = 10.0  #: that a program may take
LETTERS = 2**20  #: that it may print; how many the model is shown is for `tools` to say


def python(code: str) -> str:
    """Run a Python program without network or files, and return what it prints.

    Args:
        code: The program; the value of its last expression is printed.

    """
    return interpreter.run(interpreter.as_notebook(code), SECONDS, LETTERS)
