"""Episodes in which the model calls functions of the user."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gym_core.errors import GymError
from gym_rewards.coroutines import settled
from gym_rl.environment import CALLS, FAILED_CALLS, Action, Call, Message, StepResult
from gym_rl.environments.config import ToolsEnvironment
from gym_rl.environments.tool_functions import Functions, ToolFunctions, closed, earned

CUT = "...(truncated)..."
#: By the side that is left, how many characters of a beginning and of an end are, of those that may be shown.
PARTS: dict[str, Callable[[int], tuple[int, int]]] = {
    "left": lambda most: (most, 0),
    "middle": lambda most: (most - most // 2, most // 2),
    "right": lambda most: (0, most),
}


class ToolEpisodes:
    """Begins episodes, each with objects of its own of the classes among the tools."""

    def __init__(self, config: ToolsEnvironment) -> None:
        """Import the functions. Raises GymError where one is not there."""
        self.config, self.tools = config, ToolFunctions(config.functions)

    def __call__(self, row: Mapping[str, Any], messages: Sequence[Message]) -> ToolEpisode:
        """Begin one."""
        return ToolEpisode(self.config, *self.tools.begun(row))


class ToolEpisode:
    """One episode, which remembers nothing but what objects of the user do."""

    def __init__(self, config: ToolsEnvironment, functions: Functions, objects: Sequence[Any]) -> None:
        """Take what may be called, by name, and what may have earned something."""
        self.config, self.functions, self.objects = config, functions, objects
        self.given = 0.0  #: of the reward so far

    def step(self, action: Action) -> StepResult:
        """Call what the model wants called, one after the other; without a call the episode ends."""
        results = [self._result(call) for call in action.calls]
        messages = [self._message(call, text) for call, (text, _) in zip(action.calls, results, strict=True)]
        metrics = {CALLS: len(results), FAILED_CALLS: sum(failed for _, failed in results)}
        before, self.given = self.given, sum(map(earned, self.objects))
        return StepResult(messages, self.given - before, metrics)

    def close(self) -> None:
        """Have objects of the user let go of what they hold. Raises what they raise, after all were told."""
        closed(self.objects)

    def _message(self, call: Call, text: str) -> Message:
        most = self.config.max_tool_response_length
        if len(text) > most:
            begin, end = PARTS[self.config.tool_response_truncate_side](most)
            text = text[:begin] + CUT + text[len(text) - end :]
        return {"role": "tool", "name": call.name, "content": text}

    def _result(self, call: Call) -> tuple[str, bool]:
        """Return what a function returns, or why it does not, as the model is shown it, and whether it does not.

        Raises GymError of what a tool needs and is not there, such as a sandbox: no call of it would ever tell the model more.
        """
        if call.name not in self.functions:
            return f"error: there is no tool `{call.name}`; there are: {', '.join(self.functions)}", True
        try:
            arguments = json.loads(call.arguments)
            if not isinstance(arguments, dict):
                raise ValueError("the arguments are no object")
            made = settled(self.functions[call.name](**arguments))
            return made if isinstance(made, str) else json.dumps(made, ensure_ascii=False, default=str), False
        except GymError:
            raise
        except (Exception, SystemExit) as error:  # of the model or of the function: the model is told
            return f"error: {type(error).__name__}: {error}", True
