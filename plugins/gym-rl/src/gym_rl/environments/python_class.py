"""Episodes that a class of the user plays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gym_core.errors import GymError
from gym_rewards.builtin.python_function import load_function
from gym_rewards.coroutines import settled
from gym_rl.environment import KEY, Action, Message, StepResult, closes
from gym_rl.environments.config import FIX, PythonEnvironment


class PythonEpisodes:
    """Begins episodes of a class."""

    def __init__(self, config: PythonEnvironment) -> None:
        """Import the class. Raises GymError where there is none."""
        self.config = config
        self.made_by = load_function(config.environment, KEY, FIX)

    def __call__(self, row: Mapping[str, Any], messages: Sequence[Message]) -> PythonEpisode:
        """Begin one."""
        return PythonEpisode(self.config.environment, self.made_by(dict(row), list(messages), **self.config.options))


class PythonEpisode:
    """One episode of such a class."""

    def __init__(self, name: str, played: Any) -> None:
        """Take what plays it, and what that is called."""
        self.name, self.played = name, played

    def step(self, action: Action) -> StepResult:
        """Return what the class says. Raises GymError where that is nothing of what it may say."""
        said = settled(self.played.step(action))
        if isinstance(said, StepResult):
            return said
        if said is None or isinstance(said, str):
            return StepResult([] if said is None else [{"role": "user", "content": said}])
        raise GymError(
            f"{self.name}: `step` returned {str(said)[:60]!r}",
            key=KEY,
            fix="return a `gym_rl.environment.StepResult`, a text or None",
        )

    def close(self) -> None:
        """Have the class let go of what it holds, where it says how."""
        if closes(self.played):
            settled(self.played.close())
