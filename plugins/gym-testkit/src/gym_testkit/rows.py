"""Rows of every shape that an algorithm may learn from: a task that a tiny model learns by heart in a few steps."""

from __future__ import annotations

from typing import Any

from gym_data.shapes import brought

COUNT = 16


BEGINNING = "Which letter comes next? "  #: of questions that begin alike


def make(shape: str, even: bool = False, alike: bool = False) -> list[dict[str, Any]]:
    """Return rows of a shape (`Algorithm.rows`): which letter follows.

    `even` makes all of one length, and with `alike` every second question begins with the same words.
    """
    own = brought(shape)
    row = own.shown if own else _SHAPES[shape]
    return [dict(row(*_pair(number, even, BEGINNING * (alike and number % 2)))) for number in range(COUNT)]


def _pair(number: int, even: bool, beginning: str) -> tuple[str, str, str]:
    """Return a question, its answer, and a wrong answer of the same length."""
    letter, follower, wrong = (chr(ord("a") + (number + step) % 24) for step in (0, 1, 13))
    times = 1 if even else 1 + 3 * (number % 4)
    return beginning + letter * times, follower * times, wrong * times


def _conversation(question: str, answer: str, wrong: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def _text(question: str, answer: str, wrong: str) -> dict[str, Any]:
    return {"text": f"{question} {answer}"}


def _preference(question: str, answer: str, wrong: str) -> dict[str, Any]:
    better, worse = (_conversation(question, each, "")["messages"] for each in (answer, wrong))
    return {"chosen": better, "rejected": worse}


def _feedback(question: str, answer: str, wrong: str) -> dict[str, Any]:
    good = ord(question[-1]) % 2 == 0
    return _conversation(question, answer if good else wrong, "") | {"label": good}


def _stepwise(question: str, answer: str, wrong: str) -> dict[str, Any]:
    good = ord(question[-1]) % 2 == 0
    return {"prompt": question, "completions": [answer, answer if good else wrong], "labels": [True, good]}


def _prompt(question: str, answer: str, wrong: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}], "answer": answer}


_SHAPES = {
    "conversation": _conversation,
    "text": _text,
    "preference": _preference,
    "feedback": _feedback,
    "stepwise": _stepwise,
    "prompt": _prompt,
}
