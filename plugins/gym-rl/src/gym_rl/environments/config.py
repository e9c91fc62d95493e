"""Their options; nothing heavy is imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveInt

from gym_core.component import load_object
from gym_rewards import Reward, RewardInput
from gym_rewards.source_check import Reference, check_there
from gym_rl.environment import KEY, Environment

FIX = "write `package.module:name` or `path/file.py:name`"


class PythonEnvironment(Environment):
    """A class of yours: `Class(row, messages, **options)` begins an episode, and its `step(action)` returns what follows a turn.

    `action.text` is what the model wrote (`gym_rl.Action`). What follows is a `gym_rl.StepResult`, or a text, which the user says
    next, or None where the episode ends. A method `close()`, where there is one, is called once when the episode is over.
    """

    target: ClassVar[str] = "gym_rl.environments.python_class:PythonEpisodes"
    example: ClassVar[Mapping[str, Any]] = {"answer": 7}

    environment: Annotated[Reference, Field(examples=["gym_rl.environments.guess_number:GuessNumber"])]
    """`package.module:Class`, or `path/to/file.py:Class`; a relative path starts at the recipe, or, where that is no file, where
    the command runs."""
    options: dict[str, Any] = {}
    """Further arguments, by name."""

    def check(self) -> None:
        """Raise GymError where no such class stands there; nothing of it is run."""
        check_there(self.environment, KEY, FIX)


class ToolsEnvironment(Environment):
    """Functions of yours that the model may call; a turn without a call ends the episode.

    Prompts offer them as the chat template has it, described by their signature and docstring. What a function returns is shown
    as a message of the role `tool`, and so is an error, which the model may learn from.
    """

    target: ClassVar[str] = "gym_rl.environments.tools:ToolEpisodes"

    functions: Annotated[
        list[Reference],
        Field(min_length=1, examples=[["gym_rl.environments.calculator:calculator"]]),
    ]
    """`package.module:function`, or `path/to/file.py:function`, with type hints and a docstring that describes each argument
    under `Args:` (`tools`, `environment_factory` in TRL, `tool_config_path` in verl). Of a class each completion has an object of
    its own, `Class()`, whose public methods are the tools: `reset(**row)` begins, `close()` ends it, and `get_reward()`, or
    `reward`, is what it gives. A relative path starts at the recipe, or, where that is no file, where the command runs."""
    max_tool_response_length: PositiveInt = 4000
    """Most characters that the model is shown of what a function returns (`max_tool_response_length` in verl)."""
    tool_response_truncate_side: Literal["left", "middle", "right"] = "left"
    """Which part of a longer one it is shown: the beginning (`left`), both ends (`middle`) or the end (`right`), named as in
    verl."""

    def check(self) -> None:
        """Raise GymError where one of them does not stand there; nothing of them is run."""
        for function in self.functions:
            check_there(function, KEY, FIX)

    def tools(self) -> Sequence[Mapping[str, Any]]:
        """Return what their signatures and docstrings say. Raises GymError where that is not enough."""
        described: Callable[..., Sequence[Mapping[str, Any]]] = load_object(
            "gym_rl.environments.tool_functions:described"
        )
        return described(self.functions)


class EnvironmentReward(Reward):
    """What the environment gave for the turns of a completion, summed."""

    target: ClassVar[str] = "gym_rl.environments.environment_score:EnvironmentScore"
    better: ClassVar[tuple[RewardInput, RewardInput] | None] = (
        RewardInput("7", environment_reward=1.0),
        RewardInput("3", environment_reward=0.0),
    )
