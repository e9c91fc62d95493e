"""Tools that an answer may use: a calculator and Python, each call in a sandbox of its own."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gym_rewards.sandbox import interpreter
from gym_training_free.endpoint.chat import Message
from gym_training_free.endpoint.reply import ToolCall

MOST = 16  #: calls in one reply
_CALCULATE = """
import json, math, fractions, decimal
names = {name: getattr(math, name) for name in dir(math) if name[0] != "_"}
names |= {"abs": abs, "round": round, "min": min, "max": max, "sum": sum, "Fraction": fractions.Fraction}
print(eval(json.loads(%s), {"__builtins__": {}}, names))
"""


def _calculator(arguments: Mapping[str, Any]) -> str:
    """Return a program that prints the value of an expression. Raises ValueError where it is none."""
    expression = str(arguments["expression"]).strip().replace("^", "**")
    try:
        ast.parse(expression, mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ValueError(f"`{expression[:80]}` is no expression: {error}") from None
    return _CALCULATE % repr(json.dumps(expression))


def _program(arguments: Mapping[str, Any]) -> str:
    return interpreter.as_notebook(str(arguments["code"]))


#: By name: what makes a program of the arguments, the one argument, what it is for.
TOOLS: dict[str, tuple[Callable[[Mapping[str, Any]], str], str, str]] = {
    "calculator": (
        _calculator,
        "expression",
        "Returns the value of an arithmetic expression in Python, such as sqrt(2)*3**4.",
    ),
    "python": (
        _program,
        "code",
        "Runs a Python program without network or files, and returns what it prints.",
    ),
}


def described(names: Sequence[str]) -> list[dict[str, Any]]:
    """Return tools as the key `tools` of a request has them."""
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": TOOLS[name][2],
                "parameters": {
                    "type": "object",
                    "properties": {TOOLS[name][1]: {"type": "string"}},
                    "required": [TOOLS[name][1]],
                    "additionalProperties": False,
                },
            },
        }
        for name in names
    ]


def use(call: ToolCall, names: Sequence[str], seconds: float) -> str:
    """Return what a tool says, errors of the model included. Raises GymError where programs cannot be confined here."""
    if not names:
        return f"error: {MOST} calls in one reply are the most"
    if call.name not in names:
        return f"error: there is no tool `{call.name}`; there are: {', '.join(names)}"
    make, argument, _ = TOOLS[call.name]
    try:
        program = make(json.loads(call.arguments))
        program.encode()
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        reason = f"it needs the argument `{argument}`" if isinstance(error, TypeError | KeyError) else str(error)
        return f"error: {reason}"
    return interpreter.run(program, seconds)


def spoken(text: str, calls: Sequence[ToolCall]) -> Message:
    """Return the message of a model that calls tools."""
    made = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in calls
    ]
    return {"role": "assistant", "content": text, "tool_calls": made}
