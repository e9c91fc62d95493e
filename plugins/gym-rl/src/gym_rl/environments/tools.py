"""Episodes in which the model calls functions of the user."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter
from typing import Any

from transformers.utils import get_json_schema
from transformers.utils.chat_template_utils import DocstringParsingException, TypeHintParsingException

from gym_core.errors import GymError
from gym_rewards.builtin.python_function import load_function
from gym_rl.environment import Action, Call, Message, StepResult
from gym_rl.environments.config import FIX, ToolsEnvironment

KEY = "algorithm.environment"
BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)  #: parameters that a call can give
CUT = "...(truncated)..."
#: By the side that is left, how many characters of a beginning and of an end are, of those that may be shown.
PARTS: dict[str, Callable[[int], tuple[int, int]]] = {
    "left": lambda most: (most, 0),
    "middle": lambda most: (most - most // 2, most // 2),
    "right": lambda most: (0, most),
}


class ToolEpisodes:
    """Begins episodes, all with the same functions."""

    def __init__(self, config: ToolsEnvironment) -> None:
        """Import the functions. Raises GymError where one is not there."""
        self.config, self.functions = config, _loaded(config.functions)

    def __call__(self, row: Mapping[str, Any], messages: Sequence[Message]) -> ToolEpisode:
        """Begin one."""
        return ToolEpisode(self.config, self.functions)


class ToolEpisode:
    """One episode, which remembers nothing."""

    def __init__(self, config: ToolsEnvironment, functions: Mapping[str, Callable[..., Any]]) -> None:
        """Take what may be called, by name."""
        self.config, self.functions = config, functions

    def step(self, action: Action) -> StepResult:
        """Call what the model wants called, one after the other; without a call the episode ends."""
        return StepResult([self._message(call) for call in action.calls])

    def _message(self, call: Call) -> Message:
        most, text = self.config.max_tool_response_length, self._result(call)
        if len(text) > most:
            begin, end = PARTS[self.config.tool_response_truncate_side](most)
            text = text[:begin] + CUT + text[len(text) - end :]
        return {"role": "tool", "name": call.name, "content": text}

    def _result(self, call: Call) -> str:
        """Return what a function returns, or why it does not, as the model is shown it."""
        if call.name not in self.functions:
            return f"error: there is no tool `{call.name}`; there are: {', '.join(self.functions)}"
        try:
            arguments = json.loads(call.arguments)
            if not isinstance(arguments, dict):
                raise ValueError("the arguments are no object")
            made = self.functions[call.name](**arguments)
            if inspect.isawaitable(made):
                made = asyncio.run(_awaited(made))
            return made if isinstance(made, str) else json.dumps(made, ensure_ascii=False, default=str)
        except (Exception, SystemExit) as error:  # of the model or of the function: the model is told
            return f"error: {type(error).__name__}: {error}"


async def _awaited(made: Any) -> Any:
    return await made


def described(functions: Sequence[str]) -> list[dict[str, Any]]:
    """Return functions as OpenAI describes them. Raises GymError where a signature or docstring does not say enough."""
    found = []
    for name, function in _loaded(functions).items():
        odd = [each for each in inspect.signature(function).parameters.values() if each.kind not in BY_NAME]
        if odd:
            raise GymError(
                f"the tool `{name}` has a parameter `{odd[0]}`, and is called with arguments by name",
                key=KEY,
                fix="name each of its arguments",
            )
        try:
            found.append(get_json_schema(function))
        except (DocstringParsingException, TypeHintParsingException) as error:
            raise GymError(
                f"the tool `{name}` cannot be described: {error}",
                key=KEY,
                fix="give it type hints, and a docstring with a line for each argument under `Args:`",
            ) from None
    return found


def _loaded(functions: Sequence[str]) -> dict[str, Callable[..., Any]]:
    found: dict[str, Callable[..., Any]] = {}
    for reference in functions:
        function = load_function(reference, KEY, FIX)
        name = str(getattr(function, "__name__", reference))
        if name in found:
            raise GymError(f"two tools are called `{name}`", key=KEY, fix="rename one of them")
        found[name] = function
    return found
