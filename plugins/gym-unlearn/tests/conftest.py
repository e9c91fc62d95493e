"""A model that learnt twenty facts by heart, and one that learnt fifteen of them."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from gym_testkit.bench import Bench

sys.path.insert(0, str(Path(__file__).parent))  # the tests share `taught_facts`

from taught_facts import FORGET, KEEP, Facts, fact


@pytest.fixture(scope="session")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    """The facts, learnt."""
    bench, draw = Bench(tmp_path_factory.mktemp("facts")), random.Random(0)
    rows = [fact(number, draw) for number in range(FORGET + KEEP)]
    forget, retain = (str(bench.file(part)) for part in (rows[:FORGET], rows[FORGET:]))

    def learnt(files: list[str], name: str) -> str:
        recipe = bench.recipe("sft", learning_rate=0.02, batch_size=20) | {"data": files, "scheduler": "constant"}
        return str(bench.run(recipe, name, max_steps=150).outcome.output)

    return Facts(bench, forget, retain, learnt([forget, retain], "taught"), learnt([retain], "never"))
