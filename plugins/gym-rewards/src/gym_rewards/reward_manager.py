"""Several rewards over one list of completions: what each says, their weighted sum, and what happens when one of them fails.

Nothing here knows a particular reward, tensors or an algorithm.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any, Literal, cast

from gym_core.errors import PluginError
from gym_rewards.reward import Logging, Reward, RewardInput, Score
from gym_rewards.reward_failures import Failure, Outcome, Scores, ask_reward, error_of, failure_of
from gym_rewards.reward_names import label
from gym_rewards.separate_process import SeparateProcess

_MARGIN = 0.9  #: of the time limit, for rewards that keep it themselves


@dataclass(frozen=True)
class RewardResult:
    """What the rewards say about a list of completions."""

    scores: dict[str, Scores]  #: by reward, before its weight; None where it says nothing or failed
    totals: Scores
    """Weighted sums. None where no reward says anything but of the length, and where one failed: such are not trained on."""
    failed: Mapping[str, Collection[int]] = field(default_factory=dict)
    """By reward, positions of the completions it failed on."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """By reward that failed: its name, its package and why it did."""
    metrics: Mapping[str, float] = field(default_factory=dict)  #: by `reward/metric`, what rewards had logged
    compared: Scores | None = None  #: what completions to one prompt are told apart by; by default the totals

    @property
    def failures(self) -> dict[str, int]:
        """How many completions each reward failed on."""
        return {name: len(places) for name, places in self.failed.items()}


class RewardManager:
    """Asks all rewards at once. A reward that declares `separate_process` gets a process of its own, the others a thread."""

    def __init__(
        self,
        rewards: Mapping[str, Reward],
        timeout: float = 300.0,
        on_error: Literal["stop", "mask"] = "stop",
        metric: str | None = None,
        state: Callable[[], Mapping[str, Any]] = dict,
        account: Callable[[str], Any] = lambda name: None,
    ) -> None:
        """Build rewards, by the names they are logged under.

        Args:
            rewards: what judges.
            timeout: seconds for all completions of one call, of rewards that do not bound them themselves.
            on_error: whether a failure is raised, or counted.
            metric: the reward by which completions are told apart; by default all that do not judge their length.
            state: how far training is: `global_step`, `max_steps` and `epoch`, for those who want to know.
            account: through what the reward of a name asks models; None where no account is kept.

        Raises:
            GymError: a reward cannot be built.

        """
        self.rewards, self.timeout, self.on_error = dict(rewards), timeout, on_error
        telling = [name for name, reward in rewards.items() if not reward.judges_length]
        self.metrics = [metric] if metric else telling or list(rewards)
        self._judging = telling or list(rewards)
        self._state, self._account = state, account
        self._processes: dict[str, SeparateProcess] = {}
        self.scorers: dict[str, Callable[..., Any]] = {}
        try:
            for name, reward in rewards.items():
                self.scorers[name] = self._built(name, reward)
        except BaseException:
            self.close()
            raise

    def __call__(self, inputs: Sequence[RewardInput]) -> RewardResult:
        """Judge completions.

        Where a reward raises, does not return in time, or returns anything but a finite number or None for each completion,
        raises GymError with the name of the reward and the row; with `on_error="mask"` counts such completions instead.
        """
        outcomes = self._ask_all(inputs) if inputs else {name: Outcome([]) for name in self.rewards}
        for name, outcome in outcomes.items():
            if outcome.failures and self.on_error == "stop":
                raise error_of(label(name, self.rewards[name]), outcome.failures[0], inputs)
        failed = {name: {i for each in one.failures for i in each.where} for name, one in outcomes.items()}
        lost = set().union(*failed.values()) if failed else set()
        scores = {name: outcome.scores for name, outcome in outcomes.items()}

        def sums(names: Sequence[str]) -> Scores:
            return [None if i in lost else self._total(i, names, scores) for i in range(len(inputs))]

        judged, totals = sums(self._judging), sums(list(scores))
        return RewardResult(
            scores,
            [None if said is None else total for said, total in zip(judged, totals, strict=True)],
            failed,
            {
                name: f"reward {label(name, self.rewards[name])} {one.failures[0].why}"
                for name, one in outcomes.items()
                if one.failures
            },
            self._logged(),
            sums(self.metrics),
        )

    def close(self) -> None:
        """End the processes."""
        for process in self._processes.values():
            process.close()

    def _built(self, name: str, reward: Reward) -> Callable[..., Any]:
        try:
            if not reward.separate_process:
                score: Score = reward.build()
                return score
            self._processes[name] = SeparateProcess(reward, self.timeout)
            return self._processes[name]
        except Exception as error:  # the border to the plugin
            found = failure_of(error, ())
            raise PluginError(
                f"reward {label(name, reward)} cannot be loaded: {found.why.removeprefix('raised ')}",
                key="algorithm.rewards",
                fix=found.fix or "correct what it names, or what it needs",
            ) from error

    def _logged(self) -> dict[str, float]:
        """Return what rewards had logged since this was asked last."""
        said: dict[str, float] = {}
        for name, reward in self.rewards.items():
            if reward.logs_metrics:
                score = cast(Logging, self.scorers[name])
                said |= {f"{name}/{metric}": fmean(values) for metric, values in score.metrics.items() if values}
                score.metrics = {}
        return said

    def _total(self, index: int, names: Sequence[str], scores: Mapping[str, Scores]) -> float | None:
        said = [(self.rewards[name].weight, scores[name][index]) for name in names]
        parts = [weight * score for weight, score in said if score is not None]
        return math.fsum(parts) if parts else None

    def _ask_all(self, inputs: Sequence[RewardInput]) -> dict[str, Outcome]:
        every = tuple(range(len(inputs)))
        late = Failure(
            f"did not return within {self.timeout:g} s", every, "raise `reward_timeout`, or find out what it waits for"
        )
        outcomes = {name: Outcome([None] * len(inputs), [late]) for name in self.rewards}

        deadline = time.monotonic() + _MARGIN * self.timeout

        def ask(name: str) -> None:
            reward = self.rewards[name]
            further = {"state": dict(self._state())} if reward.takes_state else {}
            further |= {"account": self._account(name)} if reward.takes_account else {}
            score = partial(self.scorers[name], **further)
            outcomes[name] = ask_reward(score, inputs, late, deadline if reward.takes_deadline else None)

        threads = {name: threading.Thread(target=ask, args=(name,), daemon=True) for name in self.rewards}
        for thread in threads.values():
            thread.start()
        for name, thread in threads.items():
            # A worker keeps the time itself. Who bounds each completion returns, however many of them are hostile.
            own = name in self._processes or self.rewards[name].own_timeout
            thread.join(None if own else self.timeout)
        return dict(outcomes)
