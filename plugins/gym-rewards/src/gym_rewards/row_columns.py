"""Reading the columns of a row that rewards compare with."""

from __future__ import annotations

from typing import Any

from gym_rewards.reward import RewardInput


def column(item: RewardInput, name: str) -> Any:
    """Return a column of the completion's row. Raises ValueError where it is missing or empty."""
    value = item.row.get(name)
    if value is None or value == "" or (isinstance(value, list | tuple) and len(value) == 0):
        state = "is empty" if name in item.row else f"is missing; there are {', '.join(map(str, item.row)) or 'none'}"
        raise ValueError(f"column `{name}` {state}")
    return value


def several(item: RewardInput, name: str) -> list[Any]:
    """Return the values of a column that may hold one or a list. Raises ValueError where there is none."""
    value = column(item, name)
    return list(value) if isinstance(value, list | tuple) else [value]
