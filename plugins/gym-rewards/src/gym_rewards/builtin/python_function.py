"""Scores from a function of the user, called with what its parameters ask for."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from gym_core.component import load_object
from gym_core.errors import GymError
from gym_rewards.reward import Answer

if TYPE_CHECKING:
    from gym_rewards.builtin import PythonFunction


#: what is offered to every function, beside columns and options
OFFERED = (
    "answers", "texts", "completions", "completion_ids", "prompts", "messages", "ids", "tokens", "finished",
    "trainer_state", "log_metric", "log_extra",
)  # fmt: skip


class FunctionScore:
    """Calls a function once for all answers."""

    def __init__(self, config: PythonFunction) -> None:
        """Import the function. Raises GymError where there is none."""
        self.config = config
        self.function = _load(config.function)
        parameters = inspect.signature(self.function).parameters.values()
        self.metrics: dict[str, list[float]] = {}  #: by name, what the function had logged
        self._takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        self._named = [
            parameter
            for parameter in parameters
            if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        ]

    @property
    def columns(self) -> Sequence[str] | None:
        """What it asks for by a name of its own; all there are for a function that takes `**kwargs` or whole answers."""
        names = [parameter.name for parameter in self._named]
        if self._takes_all or "answers" in names:
            return None
        return [name for name in names if name not in OFFERED and name not in self.config.options]

    def __call__(self, answers: Sequence[Answer]) -> list[float | None]:
        """Return what the function returns, before any training; see `score`."""
        return self.score(answers, {})

    def score(self, answers: Sequence[Answer], state: Mapping[str, Any]) -> list[float | None]:
        """Return what the function returns, as numbers. Raises GymError where it asks for what there is not."""
        if not answers:
            return []
        offered = self._offered(answers, state) | self.config.options
        missing = [
            parameter.name
            for parameter in self._named
            if parameter.default is parameter.empty and parameter.name not in offered
        ]
        if missing:
            raise GymError(
                f"{self.config.function} wants `{missing[0]}`, which is neither an option nor a column that can be handed on",
                fix=f"there are {', '.join(offered)}",
            )
        first = [offered[one.name] for one in self._named if one.kind is one.POSITIONAL_ONLY and one.name in offered]
        wanted = {one.name for one in self._named if one.kind is not one.POSITIONAL_ONLY}
        given = {name: value for name, value in offered.items() if self._takes_all or name in wanted}
        scores = self.function(*first, **given)
        if inspect.isawaitable(scores):
            scores = asyncio.run(_awaited(scores))
        try:
            return [None if score is None else float(score) for score in scores]
        except (TypeError, ValueError):
            raise GymError(
                f"{self.config.function} returned {str(scores)[:60]!r}",
                fix="return a list of numbers, one for each answer",
            ) from None

    def _log(self, name: str, value: float) -> None:
        self.metrics.setdefault(str(name), []).append(float(value))

    def _offered(self, answers: Sequence[Answer], state: Mapping[str, Any]) -> dict[str, Any]:
        columns = {name: [answer.row.get(name) for answer in answers] for answer in answers for name in answer.row}
        texts = [answer.text for answer in answers]
        messages = [list(answer.messages) for answer in answers]
        said = [[{"role": "assistant", "content": text}] for text in texts]
        asked = ["\n\n".join(str(part.get("content") or "") for part in prompt) for prompt in messages]
        return columns | {
            "answers": list(answers),
            "texts": texts,
            "completions": said if self.config.conversational else texts,
            "prompts": messages if self.config.conversational else asked,
            "messages": messages,
            "ids": [answer.id for answer in answers],
            "tokens": [answer.tokens for answer in answers],
            "finished": [answer.finished for answer in answers],
            "completion_ids": [list(answer.token_ids) for answer in answers],
            "trainer_state": SimpleNamespace(**{"global_step": 0, "max_steps": 0, "epoch": 0.0, **state}),
            "log_metric": self._log,
            "log_extra": lambda column, values: None,
        }


async def _awaited(scores: Any) -> Any:
    return await scores


def _load(reference: str) -> Callable[..., Any]:
    where, _, name = reference.rpartition(":")
    try:
        found = _from_file(Path(where), name) if where.endswith(".py") else load_object(reference)
    except (ImportError, AttributeError, OSError) as error:
        raise GymError(
            f"{reference}: {error}",
            key="algorithm.rewards",
            fix="write `package.module:function` or `path/file.py:function`",
        ) from None
    if not callable(found):
        raise GymError(f"{reference} is a {type(found).__name__}, no function", key="algorithm.rewards")
    return found  # type: ignore[no-any-return]


def _from_file(path: Path, name: str) -> Any:
    """Run a file as a module; it may import what lies beside it."""
    file = path.expanduser().resolve()
    spec = importlib.util.spec_from_file_location(path.stem, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.path.append(str(file.parent))
    spec.loader.exec_module(module)
    return getattr(module, name)


def ended(finished: Sequence[bool]) -> list[float]:
    """Return 1 for each answer that the model ended itself; an example of such a function."""
    return [float(one) for one in finished]
