"""What an environment is: a component that answers the model, turn after turn. It knows no tensors and no algorithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol, TypeGuard, runtime_checkable

from pydantic import Field, PositiveInt

from gym_core.component import Component

Message = Mapping[str, Any]
KEY = "algorithm.environment"  #: where a recipe names one
CALLS, FAILED_CALLS = "calls", "failed_calls"  #: metrics: calls of tools in a turn, and those of them that failed


class Call(NamedTuple):
    """A call of a function."""

    name: str
    arguments: str  #: JSON of an object, or what the model wrote in its place


@dataclass(frozen=True)
class Action:
    """One turn of the model."""

    text: str  #: all that it wrote, without the token that ended the turn
    content: str = ""  #: that without thoughts and calls
    calls: Sequence[Call] = ()  #: of functions on offer, in the form of the chat template


@dataclass(frozen=True)
class StepResult:
    """What an environment makes of one turn of the model."""

    messages: Sequence[Message] = ()  #: what the model is shown next, roles and contents; none ends the episode
    reward: float = 0.0  #: what the turn earned; the reward `environment` is the sum over an episode
    metrics: Mapping[str, float] = field(default_factory=dict)
    """By name, what is logged of the turn, summed over an episode: `environment/NAME` is the mean of all episodes that had it.
    `CALLS` and `FAILED_CALLS` are logged as `tools/call_frequency` and `tools/failure_frequency`."""


class Episode(Protocol):
    """One completion under way, from its prompt to its end; it may have a `close` (`Closes`)."""

    def step(self, action: Action) -> StepResult:
        """Return what follows a turn of the model."""
        ...


@runtime_checkable
class Closes(Protocol):
    """An episode that holds what must be let go of, such as a browser or a container."""

    def close(self) -> object:
        """Let go of it. Called once when the episode is over: ended, cut off, after an error or where the run is interrupted.

        Where a `step` took too long, it may still be under way. `step` is not called after it.
        """
        ...


def closes(made: object) -> TypeGuard[Closes]:
    """Whether an object has a `close` to call: the name may be that of a number, such as the last price of a day."""
    return isinstance(made, Closes) and callable(made.close)


@runtime_checkable
class Episodes(Protocol):
    """Begins episodes."""

    def __call__(self, row: Mapping[str, Any], messages: Sequence[Message]) -> Episode:
        """Return an episode that begins with this prompt; `row` holds the columns of the row that it comes from.

        Episodes of a round are stepped side by side, each in a thread of its own. Resuming a run is exact where an episode is a
        function of its row and of what the model writes.
        """
        ...


class Environment(Component):
    """Answers the model during rollouts; named by an algorithm's `environment`.

    `build()` returns what begins episodes: `gym_rl.environment.Episodes`.
    """

    kind: ClassVar[str] = "environments"
    changeable: ClassVar[frozenset[str]] = frozenset({"step_timeout"})
    example: ClassVar[Mapping[str, Any]] = {}
    """A row that an episode of its examples begins with; for documentation and tests."""

    max_turns: PositiveInt = 8
    """Most turns of the model in one completion; one that the environment would go on with then counts as cut off
    (`max_assistant_turns` in verl, `max_tool_calling_iterations` in TRL, which does not count the first)."""
    step_timeout: Annotated[float, Field(gt=0)] = 600.0
    """Seconds that it may take to begin an episode, to answer one turn, or to close it; the run stops where it takes longer."""

    def tools(self) -> Sequence[Mapping[str, Any]]:
        """Return the functions that prompts offer whose rows offer none, as OpenAI describes functions. Default: none."""
        return ()
