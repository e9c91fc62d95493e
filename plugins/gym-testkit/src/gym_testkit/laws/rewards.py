"""Laws of rewards, asked of the two completions that a class shows: a number for each, whatever stands beside it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

from gym_rewards.reward import Reward, RewardInput, Score
from gym_testkit.bench import Bench
from gym_testkit.distribution import Brought
from gym_testkit.law import laws_of

laws = laws_of("rewards", "reward")


def _shows(brought: Brought) -> bool:
    return cast(type[Reward], brought.cls).better is not None


def _keeps_time(brought: Brought) -> bool:
    return _shows(brought) and cast(type[Reward], brought.cls).takes_deadline


def _pair(brought: Brought) -> list[RewardInput]:
    return list(cast(type[Reward], brought.cls).better or ())


def _mixed(brought: Brought) -> list[RewardInput]:
    """Return the pair, odd completions to the same rows, and the pair again."""
    pair = _pair(brought)
    odd = [replace(pair[0], text=text) for text in ("", " \n", "\x00\ud800\u202e", "9" * 5000, "<" * 5000)]
    return [*pair, *odd, *pair[::-1]]


def _score(brought: Brought) -> Score:
    return cast(Score, brought.sample().build())


def _ask(score: Score, inputs: Sequence[RewardInput]) -> list[float | None]:
    scores = list(score(inputs))
    assert len(scores) == len(inputs), f"{len(scores)} scores for {len(inputs)} completions"
    return scores


@laws("the better of its two completions earns more", _shows)
def ordered(brought: Brought, bench: Bench) -> None:
    """What the class shows as better is scored higher, as the options stand by default."""
    better, worse = _ask(_score(brought), _pair(brought))
    assert better is not None and worse is not None, "it says nothing about its own completions"
    assert better > worse, f"{better} for the better completion, {worse} for the other"


@laws("one finite number or None for each completion", _shows)
def finite(brought: Brought, bench: Bench) -> None:
    """Odd completions are no reason for NaN, infinity or fewer scores."""
    for score in _ask(_score(brought), _mixed(brought)):
        assert score is None or (isinstance(score, int | float) and math.isfinite(score)), f"{score!r} is no score"


@laws("the order of the completions does not matter", _shows)
def order(brought: Brought, bench: Bench) -> None:
    """A completion earns the same wherever it stands in the list."""
    score, inputs = _score(brought), _mixed(brought)
    assert _ask(score, inputs[::-1]) == _ask(score, inputs)[::-1]


@laws("what its score offers is declared, and what is declared it offers", _shows)
def declared(brought: Brought, bench: Bench) -> None:
    """Nobody asks a score what it is: metrics that are not declared are not logged, columns not declared not asked for."""
    cls, score = cast(type[Reward], brought.cls), _score(brought)
    assert isinstance(getattr(score, "metrics", None), dict) == cls.logs_metrics, "see `logs_metrics`, and `metrics`"
    assert hasattr(score, "columns") == cls.names_columns, "see `names_columns`, and `columns`"
    known: dict[str, Any] = {"state": {}} if cls.takes_state else {}
    known |= {"deadline": time.monotonic() + 60} if cls.takes_deadline else {}
    found = list(cast(Callable[..., Sequence[float | None]], score)(_pair(brought), **known))
    assert found == _ask(score, _pair(brought)), "what it is told beside changes the scores"


@laws("no completions, no scores", _shows)
def nothing(brought: Brought, bench: Bench) -> None:
    """An empty list is fine: a step may have lost all of its completions."""
    assert _ask(_score(brought), []) == []


@laws("an empty completion does not raise", _shows)
def empty(brought: Brought, bench: Bench) -> None:
    """A model may end at once; without text, without tokens, without a prompt that is known."""
    _ask(_score(brought), [replace(item, text="", tokens=0, messages=()) for item in _pair(brought)])


def _checks(brought: Brought) -> bool:
    """Whether it compares completions with something that their rows hold."""
    return any(item.row for item in _pair(brought))


EMPTY: tuple[Any, ...] = ("", " \n", [], {}, None, [None], [""], [{}], "[]", "{}", "null")
OTHER = "nothing that could be right: 0.123456789"


def _earned(score: Score, item: RewardInput) -> float | None:
    with suppress(Exception):  # it refuses the row, which stops a run or leaves the completion out
        return _ask(score, [item])[0]
    return None


@laws("a check that is empty or fails is passed by nothing", _checks)
def unchecked(brought: Brought, bench: Bench) -> None:
    """Where a column decides, an empty one decides against the better completion or is refused; odd completions never pass."""
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
        for item, one in zip(odd, _ask(score, odd), strict=True):
            assert one is None or one <= failing, f"{item.text[:20]!r} passes with {one}"


@laws("the same completions give the same scores", _shows)
def repeatable(brought: Brought, bench: Bench) -> None:
    """Asked again, and asked of another built from the same options, as after a resume."""
    score, inputs = _score(brought), _mixed(brought)
    first = _ask(score, inputs)
    assert _ask(score, inputs) == first, "asked twice, it says two things"
    assert _ask(_score(brought), inputs) == first, "built again, it says something else"


@laws("without time it returns at once", _keeps_time)
def punctual(brought: Brought, bench: Bench) -> None:
    """Who keeps the time itself says something of every completion when none is left, and does not go on."""
    score, inputs = cast(Callable[..., Sequence[float | None]], _score(brought)), _pair(brought) * 20
    began = time.monotonic()
    found = score(inputs, deadline=began)
    assert time.monotonic() - began < 1, "it goes on when its time is over"
    assert len(found) == len(inputs), f"{len(found)} scores for {len(inputs)} completions"
