"""Asking one reward, and what it means when it raises, takes too long, or returns what is no score."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gym_core.errors import GymError
from gym_rewards.reward import RewardInput
from gym_rewards.separate_process import plain
from gym_rewards.worker_process import Raised, TookTooLongError

Scores = list[float | None]
#: About what fp32 holds, in which scores are learnt; the mean or deviation of larger ones may be no number.
LARGEST = 1e38


@dataclass(frozen=True)
class Failure:
    """Why a reward gives no numbers for some completions."""

    why: str
    where: tuple[int, ...]  #: positions of the completions
    fix: str = ""


@dataclass
class Outcome:
    """What a reward made of the completions: numbers, and failures where there are none."""

    scores: Scores
    failures: list[Failure] = field(default_factory=list)


def ask_reward(
    score: Callable[..., Any], inputs: Sequence[RewardInput], late: Failure, deadline: float | None = None
) -> Outcome:
    """Ask a reward; where it raises for all completions together, ask for each alone, to learn which it is.

    One that keeps the time itself is told `deadline`, each completion alone an equal part of it.
    """
    every = tuple(range(len(inputs)))
    try:
        scores = plain(score(inputs) if deadline is None else score(inputs, deadline=deadline))
    except TookTooLongError:
        return Outcome([None] * len(inputs), [late])
    except (Exception, SystemExit) as error:  # the border to the plugin: what it raises becomes a failure with a name
        whole = failure_of(error, every)
    else:
        if len(scores) != len(inputs):
            why = f"returned {len(scores)} scores for {len(inputs)} completions"
            return Outcome([None] * len(inputs), [Failure(why, every, "return one for each completion, in order")])
        odd = [i for i in every if (value := scores[i]) is not None and not abs(value) <= LARGEST]
        fix = f"return a number of at most {LARGEST:g}, or None to say nothing"
        failures = [Failure(f"returned {scores[i]}", (i,), fix) for i in odd]
        return Outcome([None if i in odd else scores[i] for i in every], failures)
    if len(inputs) == 1:
        return Outcome([None], [whole])
    alone = []
    for place, item in enumerate(inputs):
        now = time.monotonic()
        part = None if deadline is None else now + (deadline - now) / (len(inputs) - place)
        alone.append(ask_reward(score, [item], late, part))
    failures = [Failure(one.why, (i,), one.fix) for i, outcome in enumerate(alone) for one in outcome.failures]
    return (
        Outcome([outcome.scores[0] for outcome in alone], failures)
        if failures
        else Outcome([None] * len(inputs), [whole])
    )


def failure_of(error: BaseException, where: tuple[int, ...]) -> Failure:
    """Return what an exception says, on a line, and what it advises."""
    if isinstance(error, GymError):
        one = error.problems[0]
        said = f"{one.where}: {one.why}" if one.where else one.why
        return Failure(f"raised {' '.join(said.split())[:300]}", where, one.fix[:300])
    text = str(error) if isinstance(error, Raised) else f"{type(error).__name__}: {error}"
    first, *others = [line.strip() for line in text.splitlines() if line.strip()] or [type(error).__name__]
    fix = next((line.removeprefix("-> ") for line in others if line.startswith("-> ")), "")
    return Failure(f"raised {first[:300]}", where, fix[:300])


def error_of(name: str, failed: Failure, inputs: Sequence[RewardInput]) -> GymError:
    """Return the error that stops a run: the reward, the rows, why, and what to do."""
    rows = list(dict.fromkeys(inputs[i].id for i in failed.where))
    where = f"row {rows[0]}" if len(rows) == 1 else f"rows {rows[0]} to {rows[-1]}"
    fix = failed.fix or "correct the row or the reward"
    return GymError(
        f"reward {name} {failed.why}",
        where=where,
        key="algorithm.rewards",
        fix=f"{fix}; `on_error: mask` leaves such completions out",
    )
