"""Judging answers: by rewards of gym-rewards, or by a function of the user. A failure leaves an answer without a reward."""

from __future__ import annotations

import hashlib
import inspect
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from gym_core.errors import GymError
from gym_rewards.reward import AsksModels, Reward, RewardInput
from gym_rewards.reward_manager import RewardManager
from gym_rewards.reward_names import named
from gym_training_free.endpoint.chat import ChatModel, described
from gym_training_free.endpoint.reward_calls import Account

_log = logging.getLogger(__name__)
RewardFunction = Callable[[str, Mapping[str, Any]], Any]


@dataclass(frozen=True)
class Judgement:
    """What is said of one answer."""

    reward: float | None  #: None where nobody could say
    critique: str = ""
    failed: str = ""  #: why nobody could, where a reward raised something or took too long

    def to_json(self) -> list[Any]:
        """Return it as plain data."""
        return [self.reward, self.critique]


UNJUDGED = Judgement(None)


class Judge(Protocol):
    """Says how good answers are."""

    @property
    def models(self) -> Sequence[ChatModel]:
        """Models that it asks."""
        ...

    def described(self) -> Any:
        """Return, as plain data, what decides its judgements; no keys."""
        ...

    def __call__(self, answers: Sequence[RewardInput], account: Account, state: Mapping[str, int]) -> list[Judgement]:
        """Return a judgement for each answer. Raises only what ends a run: CapReached, and GymError of a model that refuses."""
        ...

    def close(self) -> None:
        """End what it started."""
        ...


class Rewards:
    """Judges by components."""

    def __init__(self, rewards: Sequence[Reward], timeout: float) -> None:
        """Build the rewards. Raises GymError where one cannot be built."""
        self._account: Account | None = None
        self._state: Mapping[str, int] = {}
        self.manager = RewardManager(
            named(rewards),
            timeout,
            on_error="mask",
            state=lambda: self._state,
            account=lambda name: self._account.of(name) if self._account else None,
        )

    @property
    def models(self) -> Sequence[ChatModel]:
        """The models of rewards that ask some."""
        asking = [name for name, reward in self.manager.rewards.items() if reward.takes_account]
        return [model for name in asking for model in cast(AsksModels, self.manager.scorers[name]).models]

    def described(self) -> Any:
        """Return the rewards with their options, and the models that they ask."""
        rewards = self.manager.rewards.items()
        return {
            name: reward.model_dump(
                mode="json", exclude={*reward.names_itself, *reward.changeable}, serialize_as_any=True
            )
            for name, reward in rewards
        } | {"models": [described(one) for one in self.models]}

    def __call__(self, answers: Sequence[RewardInput], account: Account, state: Mapping[str, int]) -> list[Judgement]:
        """Return the weighted sums, and what rewards said in words."""
        self._account, self._state = account, state
        found = self.manager(answers)
        if account.ends:
            raise account.ends[0]
        for why in found.reasons.values():
            _log.warning("%s", why)
        remarks = ["\n".join(account.remarks(one, self.manager.rewards)) for one in answers]
        failed = [
            next((found.reasons[name] for name, places in found.failed.items() if place in places), "")
            for place in range(len(answers))
        ]
        return [Judgement(*each) for each in zip(found.totals, remarks, failed, strict=True)]

    def close(self) -> None:
        """End the processes of the rewards."""
        self.manager.close()


class Function:
    """Judges by a function of an answer and its row, which returns a number, or a number and a critique."""

    def __init__(self, function: RewardFunction) -> None:
        """Take the function."""
        self.function = function

    @property
    def models(self) -> Sequence[ChatModel]:
        """None."""
        return ()

    def described(self) -> Any:
        """Return its name and a hash of its source, or of its code where there is no source; what it calls is not in it."""
        function = self.function
        plain = function if inspect.isroutine(function) else type(function)
        try:
            text = inspect.getsource(plain).encode()
        except (OSError, TypeError):
            text = function.__code__.co_code if inspect.isfunction(function) else b""
        return {"function": f"{plain.__module__}.{plain.__qualname__}", "source": hashlib.sha256(text).hexdigest()[:16]}

    def __call__(self, answers: Sequence[RewardInput], account: Account, state: Mapping[str, int]) -> list[Judgement]:
        """Return what the function says of each."""
        return [self._one(answer) for answer in answers]

    def close(self) -> None:
        """Nothing was started."""

    def _one(self, answer: RewardInput) -> Judgement:
        try:
            said = self.function(answer.text, answer.row)
            reward, critique = said if isinstance(said, tuple) else (said, "")
            number = None if reward is None else float(reward)
            if number is not None and not math.isfinite(number):
                raise ValueError(f"it returned {number}")
            return Judgement(number, str(critique))
        except Exception as error:  # the border to a stranger's code
            why = f"{type(error).__name__}: {error}"
            _log.warning("the reward function failed on an answer to %s: %s", answer.id, why)
            return Judgement(None, failed=f"the function raised {why}")


def judge(reward: Any, timeout: float) -> Judge | None:
    """Return a judge from one reward, several, a function, or None for None. Raises GymError for anything else."""
    if reward is None or reward == [] or reward == ():
        return None
    listed = [reward] if isinstance(reward, Reward) else reward
    if isinstance(listed, list | tuple) and all(isinstance(one, Reward) for one in listed):
        return Rewards(listed, timeout)
    if callable(reward):
        return Function(reward)
    raise GymError(
        f"a {type(reward).__name__} is no reward",
        key="reward_fn",
        fix="hand over a function of answer and row, or rewards",
    )
