"""Laws of rewards, asked of the two answers that a class shows: a number for each, whatever the answer and its neighbours."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

from gym_rewards.reward import Answer, Reward, Score
from gym_testkit.bench import Bench
from gym_testkit.distribution import Brought
from gym_testkit.law import laws_of

laws = laws_of("rewards", "reward")


def _shows(brought: Brought) -> bool:
    return cast(type[Reward], brought.cls).better is not None


def _keeps_time(brought: Brought) -> bool:
    return _shows(brought) and cast(type[Reward], brought.cls).keeps_time


def _pair(brought: Brought) -> list[Answer]:
    return list(cast(type[Reward], brought.cls).better or ())


def _mixed(brought: Brought) -> list[Answer]:
    """Return the pair, odd answers to the same rows, and the pair again."""
    pair = _pair(brought)
    odd = [replace(pair[0], text=text) for text in ("", " \n", "\x00\ud800\u202e", "9" * 5000, "<" * 5000)]
    return [*pair, *odd, *pair[::-1]]


def _score(brought: Brought) -> Score:
    return cast(Score, brought.sample().build())


def _ask(score: Score, answers: Sequence[Answer]) -> list[float | None]:
    scores = list(score(answers))
    assert len(scores) == len(answers), f"{len(scores)} scores for {len(answers)} answers"
    return scores


@laws("the better of its two answers earns more", _shows)
def ordered(brought: Brought, bench: Bench) -> None:
    """What the class shows as better is scored higher, as the options stand by default."""
    better, worse = _ask(_score(brought), _pair(brought))
    assert better is not None and worse is not None, "it says nothing about its own answers"
    assert better > worse, f"{better} for the better answer, {worse} for the other"


@laws("one finite number or None for each answer", _shows)
def finite(brought: Brought, bench: Bench) -> None:
    """Odd answers are no reason for NaN, infinity or fewer scores."""
    for score in _ask(_score(brought), _mixed(brought)):
        assert score is None or (isinstance(score, int | float) and math.isfinite(score)), f"{score!r} is no score"


@laws("the order of the answers does not matter", _shows)
def order(brought: Brought, bench: Bench) -> None:
    """An answer earns the same wherever it stands in the list."""
    score, answers = _score(brought), _mixed(brought)
    assert _ask(score, answers[::-1]) == _ask(score, answers)[::-1]


@laws("no answers, no scores", _shows)
def nothing(brought: Brought, bench: Bench) -> None:
    """An empty list is fine: a step may have lost all of its answers."""
    assert _ask(_score(brought), []) == []


@laws("an empty answer does not raise", _shows)
def empty(brought: Brought, bench: Bench) -> None:
    """A model may end at once; without text, without tokens, without a prompt that is known."""
    _ask(_score(brought), [replace(answer, text="", tokens=0, messages=()) for answer in _pair(brought)])


def _checks(brought: Brought) -> bool:
    """Whether it compares answers with something that their rows hold."""
    return any(answer.row for answer in _pair(brought))


EMPTY: tuple[Any, ...] = ("", " \n", [], {}, None, [None], [""], [{}], "[]", "{}", "null")
OTHER = "nothing that could be right: 0.123456789"


def _earned(score: Score, answer: Answer) -> float | None:
    with suppress(Exception):  # it refuses the row, which stops a run or leaves the answer out
        return _ask(score, [answer])[0]
    return None


@laws("a check that is empty or fails is passed by nothing", _checks)
def unchecked(brought: Brought, bench: Bench) -> None:
    """Where a column decides, an empty one decides against the better answer or is refused; odd answers never pass."""
    better, worse = _pair(brought)
    score = _score(brought)
    for column in better.row:
        earned = {
            repr(value): _earned(score, replace(better, row={**better.row, column: value})) for value in (*EMPTY, OTHER)
        }
        passed = {value: one for value, one in earned.items() if one is not None and one > 0}
        if len(passed) == len(earned):  # it decides nothing
            continue
        assert not passed, f"{column} = {next(iter(passed))} checks nothing, and is passed"
        failing, odd = _earned(score, worse) or 0.0, _mixed(brought)[2:-2]
        for answer, one in zip(odd, _ask(score, odd), strict=True):
            assert one is None or one <= failing, f"{answer.text[:20]!r} passes with {one}"


@laws("the same answers give the same scores", _shows)
def repeatable(brought: Brought, bench: Bench) -> None:
    """Asked again, and asked of another built from the same options, as after a resume."""
    score, answers = _score(brought), _mixed(brought)
    first = _ask(score, answers)
    assert _ask(score, answers) == first, "asked twice, it says two things"
    assert _ask(_score(brought), answers) == first, "built again, it says something else"


@laws("without time it returns at once", _keeps_time)
def punctual(brought: Brought, bench: Bench) -> None:
    """Who keeps the time itself says something of every answer when none is left, and does not go on."""
    score, answers = cast(Callable[..., Sequence[float | None]], _score(brought)), _pair(brought) * 20
    began = time.monotonic()
    found = score(answers, until=began)
    assert time.monotonic() - began < 1, "it goes on when its time is over"
    assert len(found) == len(answers), f"{len(found)} scores for {len(answers)} answers"
