"""An example of a tool: arithmetic on numbers."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable

LONGEST = 200  #: characters of an expression
LARGEST = 1e100
_OF_TWO: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}
_OF_ONE: dict[type, Callable[[float], float]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}


def calculator(expression: str) -> str:
    """Compute the value of an arithmetic expression.

    Args:
        expression: Numbers, + - * / % and parentheses, such as 2 * (3 + 4.5).

    """
    if len(expression) > LONGEST:
        raise ValueError(f"an expression has at most {LONGEST} characters")
    return f"{_value(ast.parse(expression.strip(), mode='eval').body):.12g}"


def _value(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool) and abs(number) < LARGEST:
            return float(number)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OF_TWO:
            return _OF_TWO[type(op)](_value(left), _value(right))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OF_ONE:
            return _OF_ONE[type(op)](_value(operand))
    raise ValueError("only numbers, + - * / % and parentheses are computed")
