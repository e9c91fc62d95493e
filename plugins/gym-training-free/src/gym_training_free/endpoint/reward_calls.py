"""The account through which rewards ask models: calls of the run, in its journal and its ledger, within its caps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from gym_core.errors import GymError
from gym_rewards.reward import RewardInput
from gym_training_free.endpoint.caller import Caller
from gym_training_free.endpoint.chat import ChatModel, ChatRequest
from gym_training_free.endpoint.journal import Key
from gym_training_free.endpoint.ledger import CapReached
from gym_training_free.endpoint.reply import ChatReply

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Account:
    """What the rewards of a batch of answers ask. Threads share it."""

    caller: Caller
    keys: Mapping[int, Key]  #: by the identity of an answer, the place of its call in the run
    name: str = ""  #: of the reward that asks
    said: dict[tuple[int, str], str] = field(default_factory=dict)
    """By the same and a reward, what that said of it in words."""
    ends: list[BaseException] = field(default_factory=list)  #: why the run has to end, where it has

    def of(self, name: str) -> Account:
        """Return the same account for the reward of this name."""
        return replace(self, name=name)

    def ask(self, model: ChatModel, answer: RewardInput, request: ChatRequest) -> ChatReply | None:
        """Return the reply to a request about an answer; None where none came. Raises as `Caller.call` does."""
        key = self.keys[id(answer)]
        try:
            return self.caller.call(model, key._replace(role=f"{key.role}/{self.name}"), request)
        except (CapReached, GymError) as error:
            self.ends.append(error)
            raise

    def map(self, work: Callable[[T], R], items: Iterable[T], model: ChatModel) -> list[R]:
        """Return what `work`, which asks a model, returns for each item, as many at a time as the model takes."""
        if self.ends:  # a reward that raised is asked about each answer alone
            raise self.ends[0]
        return self.caller.map(work, items, model)

    def insist(self, model: ChatModel) -> None:
        """Raise GymError where a model was down for the whole last `map`."""
        try:
            self.caller.insist(model)
        except GymError as error:
            self.ends.append(error)
            raise

    def remark(self, answer: RewardInput, text: str) -> None:
        """Note what is said of an answer, for who compares it with others."""
        self.said[id(answer), self.name] = text

    def remarks(self, answer: RewardInput, names: Iterable[str]) -> list[str]:
        """Return what the rewards of these names said of an answer, in their order."""
        return [text for name in names if (text := self.said.get((id(answer), name)))]


def alone(answers: Iterable[RewardInput], caller: Caller) -> Account:
    """Return an account for a reward where the run keeps none."""
    return Account(caller, {id(one): Key(0, 0, place, 0, "reward") for place, one in enumerate(answers)})
