"""Reading the columns of a row that rewards compare with."""

from __future__ import annotations

from typing import Any

from gym_rewards.reward import Answer


def column(answer: Answer, name: str) -> Any:
    """Return a column of the answer's row. Raises ValueError where it is missing or empty."""
    value = answer.row.get(name)
    if value is None or value == "" or (isinstance(value, list | tuple) and len(value) == 0):
        state = (
            "is empty" if name in answer.row else f"is missing; there are {', '.join(map(str, answer.row)) or 'none'}"
        )
        raise ValueError(f"column `{name}` {state}")
    return value


def several(answer: Answer, name: str) -> list[Any]:
    """Return the values of a column that may hold one or a list. Raises ValueError where there is none."""
    value = column(answer, name)
    return list(value) if isinstance(value, list | tuple) else [value]
