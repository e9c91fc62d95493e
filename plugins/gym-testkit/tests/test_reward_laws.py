"""Every law of rewards fails for the fault it is about, and holds for the healthy reward beside it."""

from __future__ import annotations

import math
import time
from typing import ClassVar

import pytest

gym_rl = pytest.importorskip("gym_rl")

from gym_rewards import Reward, RewardInput  # noqa: E402 - it may be absent
from gym_testkit.distribution import Brought  # noqa: E402
from gym_testkit.laws import rewards  # noqa: E402


class Polite(Reward):
    """1 for an answer that says please."""

    better: ClassVar = (RewardInput("Yes, please.", {"answer": "yes"}), RewardInput("Yes.", {"answer": "yes"}))

    def build(self):
        return lambda answers: [self.one(answer) for answer in answers]

    def one(self, answer):
        return float("please" in answer.text)


class Punctual(Polite):
    takes_deadline: ClassVar = True

    def build(self):
        return lambda answers, deadline=math.inf: [self.one(answer) for answer in answers]


class GivesUp(Punctual):
    def build(self):
        return lambda answers, deadline=math.inf: [
            self.one(answer) for answer in answers if time.monotonic() < deadline
        ]


class GoesOn(Punctual):
    def one(self, answer):
        time.sleep(0.03)
        return super().one(answer)


class Rude(Polite):
    def one(self, answer):
        return -super().one(answer)


class Indifferent(Polite):
    def one(self, answer):
        return 0.5


class Silent(Polite):
    def one(self, answer):
        return None


class Mean(Polite):
    def one(self, answer):
        words = answer.text.split()
        return sum(word == "please." for word in words) / len(words) if words else math.nan


class Words(Polite):
    def one(self, answer):
        return "high" if "please" in answer.text else 0.0


class Short(Polite):
    def build(self):
        return lambda answers: [self.one(answer) for answer in answers[:1]] if answers else []


class Ranks(Polite):
    def build(self):
        return lambda answers: [self.one(answer) + n for n, answer in enumerate(answers)][::-1]


class BestOf(Polite):
    def build(self):
        def score(answers):
            best = max(len(answer.text) for answer in answers)
            return [len(answer.text) / best for answer in answers]

        return score


class First(Polite):
    def one(self, answer):
        return float(answer.text[0] == "Y" and "please" in answer.text)


class Tires(Polite):
    asked: ClassVar = 0

    def one(self, answer):
        Tires.asked += 1
        return super().one(answer) / Tires.asked


class Right(Polite):
    """1 for the answer of the row."""

    better: ClassVar = (RewardInput("yes", {"answer": "yes"}), RewardInput("no", {"answer": "yes"}))

    def one(self, answer):
        return float(bool(answer.row["answer"]) and answer.text == answer.row["answer"])


class Lenient(Right):
    def one(self, answer):
        return float(not answer.row["answer"] or answer.text == answer.row["answer"])


class Fooled(Right):
    def one(self, answer):
        return float(answer.text == answer.row["answer"] or len(answer.text) > 1000)


class Secretive(Polite):
    """Its score has something logged, and nobody knows."""

    def build(self):
        def score(answers):
            return [self.one(answer) for answer in answers]

        score.metrics = {}
        return score


class Boasts(Polite):
    logs_metrics: ClassVar = True


class Forgetful(Polite):
    """Says that it takes the state, and does not."""

    takes_state: ClassVar = True


LAWS = [law.check for law in rewards.laws.laws]


@pytest.mark.parametrize("law", LAWS, ids=[law.__name__ for law in LAWS])
def test_a_healthy_reward_holds_to_every_law(bench, law):
    law(Brought("rewards", "punctual", Punctual), bench)


def test_a_reward_that_compares_holds_to_the_law_about_checks(bench):
    rewards.unchecked(Brought("rewards", "right", Right), bench)


@pytest.mark.parametrize(
    ("cls", "law"),
    [
        (Rude, rewards.ordered),
        (Indifferent, rewards.ordered),
        (Silent, rewards.ordered),
        (Short, rewards.ordered),
        (Mean, rewards.finite),
        (Words, rewards.finite),
        (Short, rewards.finite),
        (Ranks, rewards.order),
        (BestOf, rewards.nothing),
        (First, rewards.empty),
        (Tires, rewards.repeatable),
        (GivesUp, rewards.punctual),
        (GoesOn, rewards.punctual),
        (Lenient, rewards.unchecked),
        (Fooled, rewards.unchecked),
        (Secretive, rewards.declared),
        (Boasts, rewards.declared),
        (Forgetful, rewards.declared),
    ],
)
def test_a_law_catches_its_fault(bench, cls, law):
    with pytest.raises((AssertionError, ValueError, IndexError, TypeError)):
        law(Brought("rewards", "faulty", cls), bench)


def test_laws_are_asked_of_rewards_that_show_two_answers():
    class Outside(Polite):
        """Asks somebody else."""

        better: ClassVar = None

    timed = next(law for law in rewards.laws.laws if law.check is rewards.punctual)
    assert not timed.applies(Brought("rewards", "polite", Polite))
    for law in rewards.laws.laws:
        assert law.applies(Brought("rewards", "punctual", Punctual))
        assert not law.applies(Brought("rewards", "outside", Outside))
