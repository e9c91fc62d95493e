"""Episodes in which the model calls functions of the user."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformers.utils import get_json_schema
from transformers.utils.chat_template_utils import DocstringParsingException, TypeHintParsingException

from gym_core.errors import GymError
from gym_rewards.builtin.python_function import load_function
from gym_rl.environment import Action, Call, Message, StepResult
from gym_rl.environments.config import FIX, ToolsEnvironment

KEY = "algorithm.environment"
LONGEST = 4000  #: characters that the model is shown of a result


class ToolEpisodes:
    """Begins episodes, all with the same functions."""

    def __init__(self, config: ToolsEnvironment) -> None:
        """Import the functions. Raises GymError where one is not there."""
        self.functions = _loaded(config.functions)

    def __call__(self, row: Mapping[str, Any], messages: Sequence[Message]) -> ToolEpisode:
        """Begin one."""
        return ToolEpisode(self.functions)


class ToolEpisode:
    """One episode, which remembers nothing."""

    def __init__(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        """Take what may be called, by name."""
        self.functions = functions

    def step(self, action: Action) -> StepResult:
        """Call what the model wants called, one after the other; without a call the episode ends."""
        return StepResult(
            [{"role": "tool", "name": call.name, "content": self._result(call)[:LONGEST]} for call in action.calls]
        )

    def _result(self, call: Call) -> str:
        """Return what a function returns, or why it does not, as the model is shown it."""
        if call.name not in self.functions:
            return f"error: there is no tool `{call.name}`; there are: {', '.join(self.functions)}"
        try:
            arguments = json.loads(call.arguments)
            if not isinstance(arguments, dict):
                raise ValueError("the arguments are no object")
            made = self.functions[call.name](**arguments)
            return made if isinstance(made, str) else json.dumps(made, ensure_ascii=False)
        except Exception as error:  # of the model or of the function: the model is told
            return f"error: {type(error).__name__}: {error}"


def described(functions: Sequence[str]) -> list[dict[str, Any]]:
    """Return functions as OpenAI describes them. Raises GymError where a signature or docstring does not say enough."""
    found = []
    for name, function in _loaded(functions).items():
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
