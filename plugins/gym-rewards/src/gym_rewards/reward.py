"""What a reward is: a component that scores completions. It knows no tensors and no algorithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Protocol

from pydantic import Field

from gym_core.component import Component

CALLED = "tool_calls"  #: key of the calls of a message
Seconds = Annotated[float, Field(gt=0, le=3600)]  #: a time limit among the options of a reward


@dataclass(frozen=True)
class RewardInput:
    """What a reward is given for one completion: the completion itself, its prompt, and the row that the prompt comes from."""

    text: str  #: the completion, without the token that ended it
    row: Mapping[str, Any] = field(default_factory=dict)  #: columns of the row that the prompt comes from
    messages: Sequence[Mapping[str, Any]] = ()  #: the prompt: roles and contents
    id: str = ""  #: names the row in error messages
    tokens: int = 0  #: length of the completion, in tokens
    finished: bool = True  #: whether the model ended it, rather than the limit of its length
    token_ids: Sequence[int] = ()  #: of the completion, the one that ended it included
    turns: Sequence[Mapping[str, Any]] = ()
    """Messages after the prompt, where an environment answered; `text` is the last turn. Contents of the model are as it wrote
    them; `tool_calls` beside them are the calls in them, read."""
    environment_reward: float | None = None  #: what the environment gave for all turns; None where there was none

    @property
    def context(self) -> Sequence[Mapping[str, Any]]:
        """All messages that `text` follows: the prompt, and the turns before the last one, in which calls stand as text."""
        turns = [{key: value for key, value in turn.items() if key != CALLED} for turn in self.turns[:-1]]
        return [*self.messages, *turns]

    @property
    def written(self) -> Sequence[str]:
        """All that the model wrote, turn after turn."""
        return [turn["content"] for turn in self.turns if turn["role"] == "assistant"] or [self.text]


class Score(Protocol):
    """What a reward builds. It is called with `state`, `deadline` and `account` too, where its reward says so."""

    def __call__(self, inputs: Sequence[RewardInput]) -> Sequence[float | None]:
        """Return a number for each completion; None where this reward has nothing to say about it."""
        ...


class Logging(Protocol):
    """A score that has something logged, as `rewards/NAME/metric`: the mean of what it wrote down."""

    metrics: dict[str, list[float]]
    """By name, what is to be logged of the calls since somebody took it."""


class AsksModels(Protocol):
    """A score that asks models."""

    @property
    def models(self) -> Sequence[Any]:
        """Models that it asks, each a `gym_training_free.endpoint.chat.ChatModel`."""
        ...


class Selective(Protocol):
    """A score that says what it reads of the rows."""

    @property
    def columns(self) -> Sequence[str] | None:
        """Columns of rows that it reads; None for all."""
        ...


class Reward(Component):
    """Scores completions. An item of an algorithm's `rewards`. `build()` returns a `gym_rewards.reward.Score`.

    A score may take its time and may raise; it must return as many numbers as it was given completions, none of them NaN.
    """

    kind: ClassVar[str] = "rewards"
    better: ClassVar[tuple[RewardInput, RewardInput] | None] = None
    """Two completions of which the first earns more than the second, with the options' defaults; for documentation and tests."""

    separate_process: ClassVar[bool] = False
    """Whether it runs code that may hang or crash the process it runs in, and so is given one of its own."""

    own_timeout: ClassVar[bool] = False
    """Whether it gives each completion a limited time of its own, and so always returns: `reward_timeout` is for the others."""

    judges_length: ClassVar[bool] = False
    """Whether it looks at how long a completion is, not at what it says: dynamic sampling does not compare completions by it."""

    takes_deadline: ClassVar[bool] = False
    """Whether its score is called with `deadline`, a time of `time.monotonic`: it returns by then what it has."""

    takes_state: ClassVar[bool] = False
    """Whether its score is called with `state`, how far training is: `global_step`, `max_steps` and `epoch`."""

    takes_account: ClassVar[bool] = False
    """Whether its score is called with `account`: where a run keeps a journal and a ledger of what it asks models, the score asks
    through them; elsewhere it is None. Such a score has `models`: it is a `gym_rewards.reward.AsksModels`."""

    names_itself: ClassVar[frozenset[str]] = frozenset()
    """Options that are models which its score names itself (`takes_account`), by what changes their replies."""

    logs_metrics: ClassVar[bool] = False
    """Whether its score has `metrics`, what is to be logged: it is a `gym_rewards.reward.Logging`."""

    names_columns: ClassVar[bool] = False
    """Whether its score has `columns`, what goes to a process of its own: it is a `gym_rewards.reward.Selective`."""

    weight: float = Field(default=1.0, allow_inf_nan=False)
    """What its score counts in the sum of all rewards; negative for a penalty."""
