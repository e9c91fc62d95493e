"""What may not stand in an experience: the answer or the text of a question that it was learned from, and chat markup."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from gym_training_free.experience.similarity import JOINERS, words

SHARE, FEWEST = 0.05, 3  #: of the questions that have an answer, from which on it is a label
RUN = 8  #: most tokens in a row that an experience may share with a question
_MARKUP = re.compile(r"<\|[^|>\n]{0,40}\|>|</?(?:s|think|tool_call|start_of_turn|end_of_turn)>|\[/?INST\]|\[\[")
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_DECIMALS = re.compile(r"\d+\.\d+")
_BOXED = re.compile(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}")


def final_answers(value: Any) -> list[str]:
    r"""Return the final answers of a row's answer: behind `####`, in the last `\boxed`, else all of it; of a list, of each."""
    if value is None:
        return []
    if isinstance(value, list | tuple):
        return [answer for item in value for answer in final_answers(item)]
    text = str(value)
    boxed = _BOXED.findall(text)
    last = text.rpartition("####")[2] if "####" in text else boxed[-1] if boxed else text
    return [last.strip()] if last.strip() else []


def labels(answers: Sequence[Any]) -> frozenset[tuple[str, ...]]:
    """Return the words of answers that many questions have: classes such as `yes`, which a lesson may name.

    `answers` are those of all questions, one for each.
    """
    found: Iterable[set[tuple[str, ...]]] = ({tuple(_plain(one)) for one in final_answers(each)} for each in answers)
    count = Counter(one for each in found for one in each)
    least = max(FEWEST, SHARE * len(answers))
    return frozenset(one for one, times in count.items() if times >= least)


def leak(text: str, question: str, answer: Any, named: Collection[tuple[str, ...]] = ()) -> str:
    """Return what an experience gives away of a question, or nothing; it may hold the words of `named`, which are labels."""
    said = _plain(text)
    for final in final_answers(answer):
        part = _plain(final)
        option = re.fullmatch(r"[A-Za-z]", final)
        if _names(text, final) if option else tuple(part) not in named and _holds(said, part):
            return "it holds the answer of its question"
    asked = _plain(question)
    if any(_holds(said, asked[start : start + RUN + 1]) for start in range(len(asked) - RUN)):
        return f"it repeats more than {RUN} words of its question"
    return ""


def markup(text: str) -> str:
    """Return why a text is no plain line, or nothing: marks of a chat template in a system prompt could end it."""
    if found := _MARKUP.search(text):
        return f"it holds the mark {found.group()!r}"
    return "" if all(sign.isprintable() or sign in JOINERS for sign in text) else "it holds control characters"


def leaks(
    text: str, rows: Sequence[tuple[str, Mapping[str, Any]]], column: str, named: Collection[tuple[str, ...]]
) -> str:
    """Return what an experience gives away of any of these questions, each with its row, or nothing; see `leak`."""
    return next((why for question, row in rows if (why := leak(text, question, row.get(column), named))), "")


def _holds(said: Sequence[str], part: Sequence[str]) -> bool:
    return bool(part) and any(list(said[i : i + len(part)]) == list(part) for i in range(len(said) - len(part) + 1))


def _names(text: str, letter: str) -> bool:
    """Whether a text names the option of this letter: `A`, `a)`. An article is none."""
    return re.search(rf"(?<!\w)(?:{letter.upper()}(?!\w)|{letter.lower()}\))", text) is not None


def _plain(text: str) -> list[str]:
    """Return the words of a text, numbers without commas between thousands and without zeros that say nothing."""
    return [_number(word) if word[0].isdecimal() else word for word in words(text)]


def _number(word: str) -> str:
    if _THOUSANDS.fullmatch(word):
        word = word.replace(",", "")
    return word.rstrip("0").rstrip(".") if _DECIMALS.fullmatch(word) else word
