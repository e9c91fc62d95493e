"""Laws of environments, asked with the row that a class shows: what it says can be shown, and follows from what is written."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

from gym_data.next_turn import NextTurn
from gym_data.tokenizer import Tokenizer
from gym_rl.environment import Action, Environment, Episode, Episodes, StepResult, closes
from gym_rl.rollouts.step_result_check import checked
from gym_testkit.bench import Bench
from gym_testkit.distribution import Brought
from gym_testkit.law import laws_of

laws = laws_of("environments", "environment")

TEXTS = ("5", "", "I do not know.", "\x00\u202e", "<|im_end|>", "9" * 2000)  #: what models write


def _begun(brought: Brought) -> Episode:
    row = cast(type[Environment], brought.cls).example
    return cast(Episodes, brought.sample().build())(row, [{"role": "user", "content": "Begin."}])


def _played(episode: Episode, texts: Sequence[str]) -> list[StepResult]:
    """Return what it says to each text, to its end."""
    said: list[StepResult] = []
    with _closing(episode):
        for text in texts:
            said.append(episode.step(Action(text, text)))
            if not said[-1].messages:
                break
    return said


@contextmanager
def _closing(*episodes: Episode) -> Iterator[None]:
    """Close them once, as rollouts do, where they hold something."""
    try:
        yield
    finally:
        for episode in episodes:
            if closes(episode):
                assert episode.close() is None, "`close` returned something"


@laws("what it says is messages and a finite reward")
def speaks(brought: Brought, bench: Bench) -> None:
    """A chat template takes its messages, which lead to another turn of the model."""
    next_turn = NextTurn(Tokenizer(bench.model()))
    for text in TEXTS:
        with _closing(episode := _begun(brought)):
            result = episode.step(Action(text, text))
        assert isinstance(result, StepResult), f"`step` returned a {type(result).__name__}"
        assert math.isfinite(result.reward), f"a reward of {result.reward}"
        if result.messages:
            assert next_turn.tokens(checked(result).messages, last=0), "its messages are no tokens"


@laws("an episode follows from its row and what is written")
def repeats(brought: Brought, bench: Bench) -> None:
    """Or a run that was killed goes on otherwise than it would have."""
    assert _played(_begun(brought), TEXTS) == _played(_begun(brought), TEXTS)


@laws("episodes side by side are as each alone")
def apart(brought: Brought, bench: Bench) -> None:
    """Two of one `build()`, stepped in turns: what one is told is nothing to the other."""
    row, asked = cast(type[Environment], brought.cls).example, [{"role": "user", "content": "Begin."}]
    episodes = cast(Episodes, brought.sample().build())
    pair = [(episodes(row, asked), order, list[StepResult]()) for order in (TEXTS, TEXTS[::-1])]
    with _closing(*(episode for episode, _, _ in pair)):
        for place in range(len(TEXTS)):
            for episode, order, said in pair:
                if not said or said[-1].messages:
                    said.append(episode.step(Action(order[place], order[place])))
    for _, order, said in pair:
        assert said == _played(_begun(brought), order)


@laws("an episode can be closed wherever it is")
def closable(brought: Brought, bench: Bench) -> None:
    """Before its first turn or amid the others, and one beside it goes on as if nothing had been closed."""
    row, asked = cast(type[Environment], brought.cls).example, [{"role": "user", "content": "Begin."}]
    episodes = cast(Episodes, brought.sample().build())
    for turns in range(3):
        goes_on = episodes(row, asked)
        _played(episodes(row, asked), TEXTS[:turns])
        assert _played(goes_on, TEXTS) == _played(_begun(brought), TEXTS)
