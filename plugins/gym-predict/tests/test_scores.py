"""BLEU and ROUGE against their formulas, written out here over the characters and words."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import pytest

from gym_predict.scores import BLEU, ROUGE, score, scores


def grams(tokens: list[str], size: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(tokens[at : at + size]) for at in range(len(tokens) - size + 1))


def bleu(predicted: str, label: str) -> float:
    """Papineni et al. 2002 over characters; where no gram of a size is found, 1/2, 1/4, ... of one is."""
    logs, halves = 0.0, 1
    for size in (1, 2, 3, 4):
        found, known = grams(list(predicted), size), grams(list(label), size)
        same, all_of_them = sum((found & known).values()), max(1, sum(found.values()))
        if size == 1 and not same:
            return 0.0
        if not same:
            halves *= 2
        logs += math.log(Fraction(same or Fraction(1, halves), all_of_them)) / 4
    return 100 * math.exp(logs) * min(1.0, math.exp(1 - len(label) / len(predicted)))


def rouge(predicted: str, label: str, size: int) -> float:
    """F1 over the different grams of words, which are parted by spaces here."""
    found, known = set(grams(predicted.split(), size)), set(grams(label.split(), size))
    return 200 * len(found & known) / (len(found) + len(known))


PAIRS = [
    ("the cat sat on the mat", "the cat is on the mat"),
    ("a b c d e", "e d c b a"),
    ("no", "something else entirely"),
    ("one two three four five six", "one two three"),
]


@pytest.mark.parametrize(("predicted", "label"), PAIRS)
def test_scores_are_those_of_the_formulas(predicted: str, label: str) -> None:
    found = score(predicted, label)
    assert found[BLEU] == pytest.approx(bleu(predicted, label), abs=1e-3)
    for size in (1, 2):
        if len(label.split()) >= size <= len(predicted.split()):
            assert found[f"rouge-{size}"] == pytest.approx(rouge(predicted, label, size), abs=1e-3)


def test_equal_texts_score_all_and_nothing_scores_nothing() -> None:
    alike = score("我是一个人工智能助手。", "我是一个人工智能助手。")
    assert all(value == pytest.approx(100, abs=1e-3) for value in alike.values())
    assert not any(score("", "text").values()) and not any(score("text", "").values())
    assert scores([("a b c d", "a b c d"), ("", "text")])[ROUGE[0]] == pytest.approx(50, abs=1e-3)
    with pytest.raises(ValueError, match="nothing was predicted"):
        scores([])
