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

from gym_core.errors import GymError, PluginError
from gym_rewards.reward import Logging, Reward, RewardInput, Score
from gym_rewards.reward_names import label
from gym_rewards.separate_process import SeparateProcess, plain
from gym_rewards.worker_process import Raised

Scores = list[float | None]

_MARGIN = 0.9  #: of the time limit, for rewards that keep it themselves


@dataclass(frozen=True)
class RewardResult:
    """What the rewards say about a list of completions."""

    scores: dict[str, Scores]  #: by reward, before its weight; None where it says nothing or failed
    totals: Scores
    """Weighted sums. None where no reward says anything but of the length, and where one failed: such are not learnt from."""
    failed: Mapping[str, Collection[int]] = field(
        default_factory=dict
    )  #: by reward, positions of the completions it failed on
    reasons: Mapping[str, str] = field(
        default_factory=dict
    )  #: by reward that failed: its name, its package and why it did
    metrics: Mapping[str, float] = field(default_factory=dict)  #: by `reward/metric`, what rewards had logged
    compared: Scores | None = None  #: what completions to one prompt are told apart by; by default the totals

    @property
    def failures(self) -> dict[str, int]:
        """How many completions each reward failed on."""
        return {name: len(places) for name, places in self.failed.items()}


@dataclass(frozen=True)
class _Fault:
    """Why a reward gives no numbers for some completions."""

    why: str
    where: tuple[int, ...]  #: positions of the completions
    fix: str = ""


@dataclass
class _Outcome:
    """What a reward made of the completions: numbers, and faults where there are none."""

    scores: Scores
    faults: list[_Fault] = field(default_factory=list)


class RewardManager:
    """Asks all rewards at once. A reward that declares `separate_process` gets a process of its own, the others a thread."""

    def __init__(
        self,
        rewards: Mapping[str, Reward],
        timeout: float = 300.0,
        on_error: Literal["stop", "mask"] = "stop",
        metric: str | None = None,
        state: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        """Build rewards, by the names they are logged under.

        Args:
            rewards: what judges.
            timeout: seconds for all completions of one call, of rewards that do not bound them themselves.
            on_error: whether a failure is raised, or counted.
            metric: the reward by which completions are told apart; by default all that do not judge their length.
            state: how far training is: `global_step`, `max_steps` and `epoch`, for those who want to know.

        Raises:
            GymError: a reward cannot be built.

        """
        self.rewards, self.timeout, self.on_error = dict(rewards), timeout, on_error
        telling = [name for name, reward in rewards.items() if not reward.judges_length]
        self.metrics = [metric] if metric else telling or list(rewards)
        self._judging = telling or list(rewards)
        self._state = state
        self._processes: dict[str, SeparateProcess] = {}
        self._score: dict[str, Callable[..., Any]] = {}
        try:
            for name, reward in rewards.items():
                self._score[name] = self._built(name, reward)
        except BaseException:
            self.close()
            raise

    def __call__(self, inputs: Sequence[RewardInput]) -> RewardResult:
        """Judge completions.

        Where a reward raises, does not return in time, or returns anything but a finite number or None for each completion,
        raises GymError with the name of the reward and the row; with `on_error="mask"` counts such completions instead.
        """
        outcomes = self._ask_all(inputs) if inputs else {name: _Outcome([]) for name in self.rewards}
        for name, outcome in outcomes.items():
            if outcome.faults and self.on_error == "stop":
                raise _error(label(name, self.rewards[name]), outcome.faults[0], inputs)
        failed = {name: {i for fault in one.faults for i in fault.where} for name, one in outcomes.items()}
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
                name: f"reward {label(name, self.rewards[name])} {one.faults[0].why}"
                for name, one in outcomes.items()
                if one.faults
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
            fault = _fault(error, ())
            raise PluginError(
                f"reward {label(name, reward)} cannot be loaded: {fault.why.removeprefix('raised ')}",
                key="algorithm.rewards",
                fix=fault.fix or "correct what it names, or what it needs",
            ) from error

    def _logged(self) -> dict[str, float]:
        """Return what rewards had logged since this was asked last."""
        said: dict[str, float] = {}
        for name, reward in self.rewards.items():
            if reward.logs_metrics:
                score = cast(Logging, self._score[name])
                said |= {f"{name}/{metric}": fmean(values) for metric, values in score.metrics.items() if values}
                score.metrics = {}
        return said

    def _total(self, index: int, names: Sequence[str], scores: Mapping[str, Scores]) -> float | None:
        said = [(self.rewards[name].weight, scores[name][index]) for name in names]
        parts = [weight * score for weight, score in said if score is not None]
        return math.fsum(parts) if parts else None

    def _ask_all(self, inputs: Sequence[RewardInput]) -> dict[str, _Outcome]:
        every = tuple(range(len(inputs)))
        late = _Fault(
            f"did not return within {self.timeout:g} s", every, "raise `reward_timeout`, or find out what it waits for"
        )
        outcomes = {name: _Outcome([None] * len(inputs), [late]) for name in self.rewards}

        deadline = time.monotonic() + _MARGIN * self.timeout

        def ask(name: str) -> None:
            reward = self.rewards[name]
            score = partial(self._score[name], state=dict(self._state())) if reward.takes_state else self._score[name]
            outcomes[name] = _outcome(score, inputs, late, deadline if reward.takes_deadline else None)

        threads = {name: threading.Thread(target=ask, args=(name,), daemon=True) for name in self.rewards}
        for thread in threads.values():
            thread.start()
        for name, thread in threads.items():
            # A worker keeps the time itself. Who bounds each completion returns, however many of them are hostile.
            own = name in self._processes or self.rewards[name].own_timeout
            thread.join(None if own else self.timeout)
        return dict(outcomes)


def _outcome(
    score: Callable[..., Any], inputs: Sequence[RewardInput], late: _Fault, deadline: float | None = None
) -> _Outcome:
    """Ask a reward; where it raises for all completions together, ask for each alone, to learn which it is.

    One that keeps the time itself is told `deadline`, each completion alone an equal part of it.
    """
    every = tuple(range(len(inputs)))
    try:
        scores = plain(score(inputs) if deadline is None else score(inputs, deadline=deadline))
    except TimeoutError:
        return _Outcome([None] * len(inputs), [late])
    except Exception as error:  # the border to the plugin: what it raises becomes a fault with a name
        whole = _fault(error, every)
    else:
        if len(scores) != len(inputs):
            why = f"returned {len(scores)} scores for {len(inputs)} completions"
            return _Outcome([None] * len(inputs), [_Fault(why, every, "return one for each completion, in order")])
        odd = [i for i in every if (value := scores[i]) is not None and not math.isfinite(value)]
        faults = [_Fault(f"returned {scores[i]}", (i,), "return a finite number, or None to say nothing") for i in odd]
        return _Outcome([None if i in odd else scores[i] for i in every], faults)
    if len(inputs) == 1:
        return _Outcome([None], [whole])
    alone = []
    for place, item in enumerate(inputs):
        now = time.monotonic()
        part = None if deadline is None else now + (deadline - now) / (len(inputs) - place)
        alone.append(_outcome(score, [item], late, part))
    faults = [_Fault(fault.why, (i,), fault.fix) for i, outcome in enumerate(alone) for fault in outcome.faults]
    return (
        _Outcome([outcome.scores[0] for outcome in alone], faults)
        if faults
        else _Outcome([None] * len(inputs), [whole])
    )


def _fault(error: Exception, where: tuple[int, ...]) -> _Fault:
    text = str(error) if isinstance(error, Raised | GymError) else f"{type(error).__name__}: {error}"
    first, *others = [line.strip() for line in text.splitlines() if line.strip()] or [type(error).__name__]
    fix = next((line.removeprefix("-> ") for line in others if line.startswith("-> ")), "")
    return _Fault(f"raised {first[:300]}", where, fix[:300])


def _error(name: str, fault: _Fault, inputs: Sequence[RewardInput]) -> GymError:
    rows = list(dict.fromkeys(inputs[i].id for i in fault.where))
    where = f"row {rows[0]}" if len(rows) == 1 else f"rows {rows[0]} to {rows[-1]}"
    fix = fault.fix or "correct the row or the reward"
    return GymError(
        f"reward {name} {fault.why}",
        where=where,
        key="algorithm.rewards",
        fix=f"{fix}; `on_error: mask` leaves such completions out",
    )
