"""What an environment returned is messages and a reward, and plain data: all of it is shown, judged, sent and kept."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from gym_data.chat.special_tokens import as_text
from gym_data.formats.parsing import text_of
from gym_rewards.reward_failures import LARGEST
from gym_rl.environment import Message, StepResult


def checked(result: StepResult) -> StepResult:
    """Return it as plain data of its own, which stays as it is whatever the environment does with it later.

    Characters that are no text to a tokenizer are replaced. Raises ValueError for what is no message, or no reward.
    """
    reward = _number(result.reward, "a reward")
    if not isinstance(result.metrics, Mapping):
        raise ValueError(f"a {type(result.metrics).__name__} in place of metrics by name")
    metrics = {str(name): _number(value, f"a metric `{name}`") for name, value in result.metrics.items()}
    messages: Any = result.messages
    if isinstance(messages, str | Mapping) or not isinstance(messages, Iterable):
        raise ValueError(f"a {type(messages).__name__} in place of a list of messages")
    return StepResult([_message(each, f"message {number}") for number, each in enumerate(messages, 1)], reward, metrics)


def _number(given: Any, what: str) -> float:
    try:
        found = float(given)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{what} of {str(given)[:60]!r}, which is no number") from None
    if not abs(found) <= LARGEST:
        raise ValueError(f"{what} of {found}")
    return found


def _message(given: Any, what: str) -> Message:
    if not isinstance(given, Mapping) or not isinstance(given.get("role"), str):
        raise ValueError(f"{what} is not an object with a `role` and a `content`: {str(given)[:60]!r}")
    content = str(text_of(as_text(given.get("content")), f"the content of {what} ({given['role']})"))
    try:
        further = json.loads(json.dumps({key: value for key, value in given.items() if key not in ("role", "content")}))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{what} ({given['role']}) is no plain data: {error}") from None
    return {"role": str(given["role"]), "content": content, **as_text(further)}
