"""Every law of rollout engines fails for the fault it is about, and holds for the healthy engine beside it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import pytest

pytest.importorskip("gym_rl")

import torch
from transformers import AutoModelForCausalLM

from gym_core import GymError
from gym_data.sources import File
from gym_rewards import Length
from gym_rl import RLOO, LocalEngineConfig
from gym_rl.local_engine import LocalEngine
from gym_testkit.distribution import Brought
from gym_testkit.laws import readme, rollouts
from gym_torch.model.adapted import Full

torch.set_num_threads(1)


class Engine(LocalEngineConfig):
    """The local engine with a fault: what is asked goes through `asked`, what is answered through `made`."""

    def build(self, **context):
        config, engine = self, LocalEngine(self, **self.over(context))

        class Faulty:
            exact, refresh, close = engine.exact, engine.refresh, engine.close

            def generate(self, request):
                return config.made(engine.generate(config.asked(request)))

        return Faulty()

    def over(self, context):
        return context

    def asked(self, request):
        return request

    def made(self, answers):
        return answers


class Backwards(Engine):
    def made(self, answers):
        return answers[::-1]


class Few(Engine):
    def made(self, answers):
        return answers[:1]


class Open(Engine):
    def made(self, answers):
        for answer in answers:
            answer.finished = False
        return answers


class Trimmed(Engine):
    def made(self, answers):
        for answer in answers:
            if answer.finished and len(answer.tokens) > 1:
                answer.tokens.pop(), answer.log_probs.pop()
        return answers


class Heedless(Engine):
    """Leaves stop strings unread."""

    def asked(self, request):
        return replace(request, stop=())


class Cutting(Engine):
    """Ends at stop strings, and says that a token did."""

    def made(self, answers):
        for answer in answers:
            answer.stop = None
        return answers


class NotANumber(Engine):
    def made(self, answers):
        answers[0].log_probs[0] = float("nan") if answers else 0.0
        return answers


class Warmer(Engine):
    def asked(self, request):
        return replace(request, temperature=request.temperature * 1.5)


class Uncut(Engine):
    def asked(self, request):
        return replace(request, top_k=0)


class Wide(Engine):
    def asked(self, request):
        return replace(request, min_p=0.0)


class Random(Engine):
    def asked(self, request):
        return replace(request, temperature=request.temperature or 1.0)


class Deaf(Engine):
    def asked(self, request):
        return replace(request, seed=0)


class Alike(Engine):
    def asked(self, request):
        return replace(request, streams=[0] * len(request.prompts))


class Crowd(Engine):
    def asked(self, request):
        return replace(request, seed=request.seed + len(request.prompts))


class Mixed(Engine):
    """What it kept of one completion it takes for that of another."""

    def asked(self, request):
        if request.turns is None:
            return request
        first = request.turns.setdefault("first", request.prompts)
        others = [*first[1:], first[0]]
        later = first is not request.prompts
        swapped = [[*other, *text[len(other) :]] for other, text in zip(others, request.prompts, strict=True)]
        return replace(request, prompts=swapped if later else first)


class Restless(Engine):
    calls: ClassVar = 0

    def asked(self, request):
        Restless.calls += 1
        return replace(request, seed=request.seed + Restless.calls)


class Stale(Engine):
    def over(self, context):
        return context | {"adapted": Full(None, AutoModelForCausalLM.from_pretrained(context["path"]).eval())}


LAWS = [law.check for law in rollouts.laws.laws]


@pytest.mark.parametrize("law", LAWS, ids=[law.__name__ for law in LAWS])
def test_a_healthy_engine_holds_to_every_law(bench, law):
    law(Brought("rollouts", "healthy", Engine), bench)


@pytest.mark.parametrize(
    ("cls", "law"),
    [
        (Backwards, rollouts.each),
        (Few, rollouts.each),
        (Open, rollouts.ends),
        (Trimmed, rollouts.ends),
        (Heedless, rollouts.stops),
        (Cutting, rollouts.stops),
        (NotANumber, rollouts.truthful),
        (Warmer, rollouts.truthful),
        (Uncut, rollouts.truthful),
        (Wide, rollouts.truthful),
        (Random, rollouts.greedy),
        (Deaf, rollouts.reproducible),
        (Alike, rollouts.reproducible),
        (Crowd, rollouts.reproducible),
        (Restless, rollouts.reproducible),
        (Mixed, rollouts.turns),
        (Stale, rollouts.follows),
    ],
)
def test_a_law_catches_its_fault(bench, cls, law):
    with pytest.raises((AssertionError, GymError)):
        law(Brought("rollouts", "faulty", cls), bench)


def test_laws_are_asked_of_components_that_need_nothing_from_outside():
    class Remote(Engine):
        """Asks somebody else."""

        outside: ClassVar[str] = "a server"

    brought = [Brought("rollouts", "healthy", Engine), Brought("rollouts", "remote", Remote)]
    installed = SimpleNamespace(components=[*brought, Brought("sources", "healthy", File)])
    assert [name for name, _ in rollouts.laws.subjects(installed)] == ["healthy"]
    algorithm = RLOO(rewards=[Length()], rollouts=Remote())
    assert list(readme.needs_of([{}, algorithm])) == ["a server"]
    assert list(readme.needs_of([RLOO(rewards=[Length()])])) == []
