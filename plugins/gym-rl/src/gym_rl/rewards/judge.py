"""Several rewards over one list of answers: what each says, their weighted sum, and what happens when one of them fails.

Nothing here knows a particular reward, tensors or an algorithm.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Literal

from gym_core.component import load_object
from gym_core.discovery import entries
from gym_core.errors import GymError
from gym_rl.reward import Answer, Reward, Score
from gym_rl.rewards.worker import Raised, Worker

Scores = list[float | None]


@dataclass(frozen=True)
class Judgement:
    """What the rewards say about a list of answers."""

    scores: dict[str, Scores]  #: by reward, before its weight; None where it says nothing or failed
    totals: Scores  #: weighted sums; None where every reward says nothing, and where one failed: such answers are not learnt from
    failures: dict[str, int]  #: by reward, the answers it failed on


@dataclass(frozen=True)
class _Fault:
    """Why a reward gives no numbers for some answers."""

    why: str
    where: tuple[int, ...]  #: positions of the answers
    fix: str = ""


@dataclass
class _Outcome:
    """What a reward made of the answers: numbers, and faults where there are none."""

    scores: Scores
    faults: list[_Fault] = field(default_factory=list)


class Judge:
    """Asks all rewards at once. A reward that declares `apart` gets a process of its own, the others a thread."""

    def __init__(
        self, rewards: Mapping[str, Reward], timeout: float = 300.0, on_error: Literal["stop", "mask"] = "stop"
    ) -> None:
        """Build rewards, by the names they are logged under. `timeout` is in seconds for all answers of one call.

        Raises GymError for what cannot be built.
        """
        self.rewards, self.timeout, self.on_error = dict(rewards), timeout, on_error
        self._workers = {
            name: Worker("gym_rl.rewards.judge:score_apart", timeout) for name, one in rewards.items() if one.apart
        }
        self._score = {name: self._scorer(name, reward) for name, reward in rewards.items()}

    def _scorer(self, name: str, reward: Reward) -> Score:
        if name not in self._workers:
            built: Score = reward.build()
            return built
        cls, options = type(reward), reward.model_dump_json()
        return partial(_ask_apart, self._workers[name], f"{cls.__module__}:{cls.__qualname__}", options)

    def __call__(self, answers: Sequence[Answer]) -> Judgement:
        """Judge answers.

        Where a reward raises, does not return in time, or returns anything but a finite number or None for each answer,
        raises GymError with the name of the reward and the row; with `on_error="mask"` counts such answers instead.
        """
        outcomes = self._ask_all(answers) if answers else {name: _Outcome([]) for name in self.rewards}
        for name, outcome in outcomes.items():
            if outcome.faults and self.on_error == "stop":
                raise _error(name, outcome.faults[0], answers)
        failed = {name: {i for fault in one.faults for i in fault.where} for name, one in outcomes.items()}
        scores = {name: outcome.scores for name, outcome in outcomes.items()}
        return Judgement(
            scores,
            [
                self._total(i, scores) if not any(i in lost for lost in failed.values()) else None
                for i in range(len(answers))
            ],
            {name: len(lost) for name, lost in failed.items()},
        )

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers.values():
            worker.close()

    def _total(self, index: int, scores: Mapping[str, Scores]) -> float | None:
        said = [(self.rewards[name].weight, some[index]) for name, some in scores.items()]
        parts = [weight * score for weight, score in said if score is not None]
        return math.fsum(parts) if parts else None

    def _ask_all(self, answers: Sequence[Answer]) -> dict[str, _Outcome]:
        every = tuple(range(len(answers)))
        late = _Fault(
            f"did not return within {self.timeout:g} s", every, "raise its time limit, or find out what it waits for"
        )
        outcomes = {name: _Outcome([None] * len(answers), [late]) for name in self.rewards}

        def ask(name: str) -> None:
            outcomes[name] = _outcome(self._score[name], answers, late)

        threads = {name: threading.Thread(target=ask, args=(name,), daemon=True) for name in self.rewards}
        for thread in threads.values():
            thread.start()
        for name, thread in threads.items():
            thread.join(None if name in self._workers else self.timeout)  # a worker keeps the time itself
        return dict(outcomes)


def named(rewards: Sequence[Reward]) -> dict[str, Reward]:
    """Return rewards by the names that recipes use; a second `python` is `python-2`."""
    known = {entry.value: entry.name for entry in entries("rewards")}
    found: dict[str, Reward] = {}
    for reward in rewards:
        cls = type(reward)
        name = known.get(f"{cls.__module__}:{cls.__qualname__}", cls.__name__.lower())
        number = 1 + sum(other == name or other.startswith(f"{name}-") for other in found)
        found[name if number == 1 else f"{name}-{number}"] = reward
    return found


def score_apart(reference: str, options: str, answers: Sequence[dict[str, Any]]) -> Scores:
    """Score answers, in a process made for that."""
    return _plain(_built(reference, options)([Answer(**answer) for answer in answers]))


@cache
def _built(reference: str, options: str) -> Score:
    cls: type[Reward] = load_object(reference)
    built: Score = cls.model_validate_json(options).build()
    return built


def _ask_apart(worker: Worker, reference: str, options: str, answers: Sequence[Answer]) -> Scores:
    scores: Scores = worker(reference, options, [{**vars(answer), "row": dict(answer.row)} for answer in answers])
    return scores


def _plain(scores: Any) -> Scores:
    """Return numbers as numbers of Python, whatever library they are of."""
    return [None if score is None else float(score) for score in scores]


def _outcome(score: Score, answers: Sequence[Answer], late: _Fault) -> _Outcome:
    """Ask a reward; where it raises for all answers together, ask for each alone, to learn which it is."""
    every = tuple(range(len(answers)))
    try:
        scores = _plain(score(answers))
    except TimeoutError:
        return _Outcome([None] * len(answers), [late])
    except Exception as error:  # the border to the plugin: what it raises becomes a fault with a name
        whole = _fault(error, every)
    else:
        if len(scores) != len(answers):
            why = f"returned {len(scores)} scores for {len(answers)} answers"
            return _Outcome([None] * len(answers), [_Fault(why, every, "return one for each answer, in order")])
        odd = [i for i in every if (value := scores[i]) is not None and not math.isfinite(value)]
        faults = [_Fault(f"returned {scores[i]}", (i,), "return a finite number, or None to say nothing") for i in odd]
        return _Outcome([None if i in odd else scores[i] for i in every], faults)
    if len(answers) == 1:
        return _Outcome([None], [whole])
    alone = [_outcome(score, [answer], late) for answer in answers]
    faults = [_Fault(fault.why, (i,), fault.fix) for i, outcome in enumerate(alone) for fault in outcome.faults]
    return (
        _Outcome([outcome.scores[0] for outcome in alone], faults)
        if faults
        else _Outcome([None] * len(answers), [whole])
    )


def _fault(error: Exception, where: tuple[int, ...]) -> _Fault:
    text = str(error) if isinstance(error, Raised | GymError) else f"{type(error).__name__}: {error}"
    first, *others = [line.strip() for line in text.splitlines() if line.strip()] or [type(error).__name__]
    fix = next((line.removeprefix("-> ") for line in others if line.startswith("-> ")), "")
    return _Fault(f"raised {first[:300]}", where, fix[:300])


def _error(name: str, fault: _Fault, answers: Sequence[Answer]) -> GymError:
    rows = list(dict.fromkeys(answers[i].id for i in fault.where))
    where = f"row {rows[0]}" if len(rows) == 1 else f"rows {rows[0]} to {rows[-1]}"
    fix = fault.fix or "correct the row or the reward"
    return GymError(
        f"reward `{name}` {fault.why}",
        where=where,
        key="algorithm.rewards",
        fix=f"{fix}; `on_error: mask` leaves such answers out",
    )
