"""Scores from a function of the user, called with what its parameters ask for."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar

from pydantic import Field

from gym_core.component import load_object
from gym_core.errors import GymError
from gym_core.files import expanded
from gym_rewards.reward import Reward, RewardInput
from gym_rewards.separate_process import plain
from gym_rewards.source_check import Reference, check_there

FIX = "write `package.module:function` or `path/file.py:function`"


class PythonFunction(Reward):
    """What a function of yours says. It is called with what its parameters ask for; functions written for TRL work unchanged.

    Parameters: `completions` or `texts`, `prompts`, `messages`, `ids`, `tokens`, `finished`, `inputs` (all of this together:
    `gym_rewards.RewardInput`), or the name of a column; each a list with an item for each completion. `**kwargs` gets all.
    """

    target: ClassVar[str] = "gym_rewards.builtin.python_function:FunctionScore"
    separate_process: ClassVar[bool] = True
    takes_state: ClassVar[bool] = True
    logs_metrics: ClassVar[bool] = True
    names_columns: ClassVar[bool] = True
    better: ClassVar[tuple[RewardInput, RewardInput] | None] = (
        RewardInput("Done.", finished=True),
        RewardInput("Do", finished=False),
    )

    function: Annotated[Reference, Field(examples=["gym_rewards.builtin.python_function:ended"])]
    """`package.module:function`, or `path/to/file.py:function`; a relative path starts at the recipe, or, where that is no
    file, where the command runs."""
    conversational: bool = False
    """Whether `prompts` and `completions` are lists of messages, as TRL passes them for conversational data, and no texts."""
    options: dict[str, Any] = {}
    """Further arguments, by name."""

    def check(self) -> None:
        """Raise GymError where no such function stands there; nothing of it is run."""
        check_there(self.function, "algorithm.rewards", FIX)


#: what is offered to every function, beside columns and options
OFFERED = (
    "inputs", "texts", "completions", "completion_ids", "prompts", "messages", "ids", "tokens", "finished",
    "trainer_state", "log_metric", "log_extra",
)  # fmt: skip
RESERVED = ("mean", "failures")  #: what is logged of every reward, as `rewards/NAME/mean`


class FunctionScore:
    """Calls a function once for all completions."""

    def __init__(self, config: PythonFunction) -> None:
        """Import the function. Raises GymError where there is none."""
        self.config = config
        self.function = load_function(config.function, "algorithm.rewards", FIX)
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
        """What it asks for by a name of its own; all there are for a function that takes `**kwargs` or whole completions."""
        names = [parameter.name for parameter in self._named]
        if self._takes_all or "inputs" in names:
            return None
        return [name for name in names if name not in OFFERED and name not in self.config.options]

    def __call__(self, inputs: Sequence[RewardInput], state: Mapping[str, Any] | None = None) -> list[float | None]:
        """Return what the function returns, as numbers. Raises GymError where it asks for what there is not."""
        if not inputs:
            return []
        offered = self._offered(inputs, state or {}) | self.config.options
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
            from gym_rewards.coroutines import settled  # asyncio is slow to import, and few functions are asynchronous

            scores = settled(scores)
        try:
            return plain(scores)
        except (TypeError, ValueError):
            raise GymError(
                f"{self.config.function} returned {str(scores)[:60]!r}",
                fix="return a list of numbers, one for each completion",
            ) from None

    def _log(self, name: str, value: float) -> None:
        if name in RESERVED:
            raise ValueError(f"`log_metric` cannot log `{name}`: every reward logs a metric of that name")
        self.metrics.setdefault(str(name), []).append(float(value))

    def _offered(self, inputs: Sequence[RewardInput], state: Mapping[str, Any]) -> dict[str, Any]:
        columns = {name: [item.row.get(name) for item in inputs] for item in inputs for name in item.row}
        texts = [item.text for item in inputs]
        messages = [list(item.messages) for item in inputs]
        said = [list(item.turns) or [{"role": "assistant", "content": item.text}] for item in inputs]
        asked = ["\n\n".join(str(part.get("content") or "") for part in prompt) for prompt in messages]
        return columns | {
            "inputs": list(inputs),
            "texts": texts,
            "completions": said if self.config.conversational else texts,
            "prompts": messages if self.config.conversational else asked,
            "messages": messages,
            "ids": [item.id for item in inputs],
            "tokens": [item.tokens for item in inputs],
            "finished": [item.finished for item in inputs],
            "completion_ids": [list(item.token_ids) for item in inputs],
            "trainer_state": SimpleNamespace(**{"global_step": 0, "max_steps": 0, "epoch": 0.0, **state}),
            "log_metric": self._log,
            "log_extra": lambda column, values: None,
        }


def load_function(reference: str, key: str, fix: str) -> Callable[..., Any]:
    """Return what `module:name` or `file.py:name` stands for. Raises GymError, of this key, where that cannot be called."""
    where, _, name = reference.rpartition(":")
    try:
        found = _from_file(Path(where), name) if where.endswith(".py") else load_object(reference)
    except (ImportError, AttributeError, OSError) as error:
        raise GymError(
            f"{reference}: {error}",
            key=key,
            fix=fix,
        ) from None
    if not callable(found):
        raise GymError(f"{reference} is a {type(found).__name__}, no function", key=key)
    return found  # type: ignore[no-any-return]


def _from_file(path: Path, name: str) -> Any:
    """Run a file as a module; it may import what lies beside it."""
    file = expanded(path).resolve()
    spec = importlib.util.spec_from_file_location(path.stem, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.path.append(str(file.parent))
    spec.loader.exec_module(module)
    return getattr(module, name)


def ended(finished: Sequence[bool]) -> list[float]:
    """Return 1 for each completion that the model ended itself; an example of such a function."""
    return [float(one) for one in finished]
