"""Who settles `auto`: the only planner installed, whoever wrote it; without one, or with two, an error says what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gym_testkit.distribution import Brought
from gym_testkit.laws import planners
from gym_testkit.metadata_files import write_distribution
from gym_torch.planners import Planner

RECIPE = """\
model: tiny
data: {sources: [{name: tiny-tasks, count: 32}]}
algorithm: sft
train: {batch_tokens: auto, max_steps: 2, plot: false, precision: fp32}
output: run
"""
CONFIG = '''
from typing import ClassVar
from gym_torch import Planner

class Fixed(Planner):
    """Always the same."""
    target: ClassVar[str] = "gym_theirs_plans:Plans"
'''
PLANS = """
class Plans:
    def __init__(self, config):
        pass
    def settle(self, run):
        return {"batch_tokens": 96}
    def predicted_bytes(self, run):
        return 1
"""
OURS_AWAY = "[plugins]\ngym-plan = false\n"


@pytest.fixture
def theirs(tmp_path: Path, environment: dict[str, str]) -> Path:
    """Install a stranger's planner into a folder that child processes see; return the folder."""
    site = tmp_path / "site"
    modules = {"gym_theirs": CONFIG, "gym_theirs_plans": PLANS}
    write_distribution(site, "gym-theirs", {"gym.planners": {"fixed": "gym_theirs:Fixed"}}, modules, version="3.0")
    environment["PYTHONPATH"] = str(site)
    return site


@pytest.mark.parametrize("command", ["train", "validate"])
def test_without_a_planner_the_error_says_how_to_get_one(gym, tmp_path, command):
    (tmp_path / "r.yaml").write_text(RECIPE)
    (tmp_path / "gym.toml").write_text(OURS_AWAY)
    done = gym(command, "r.yaml")
    assert done.returncode == 3, done.stderr
    assert "train.batch_tokens" in done.stderr and "`auto` asks a planner" in done.stderr
    assert "gym plugins enable gym-plan" in done.stderr and "Traceback" not in done.stderr
    assert "precision:" not in done.stderr, "the model was loaded first"


def test_between_two_planners_the_user_chooses(gym, tmp_path, theirs):
    (tmp_path / "r.yaml").write_text(RECIPE)
    done = gym("train", "r.yaml")
    assert done.returncode == 3, done.stderr
    assert "fixed of gym-theirs 3.0" in done.stderr and "memory of gym-plan" in done.stderr
    assert "gym plugins disable" in done.stderr
    (tmp_path / "gym.toml").write_text(OURS_AWAY)
    done = gym("train", "r.yaml")
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "run/run.json").read_text())
    settled = {"name": "fixed", "dist": "gym-theirs", "version": "3.0", "settled": {"batch_tokens": 96}}
    assert record["planner"] == settled


class Plans:
    """A planner whose answers are given."""

    def __init__(self, config, settled, sizes=(10**6,)):
        self.settled, self.sizes = settled, list(sizes)

    def settle(self, run):
        return self.settled(run.recipe.train)

    def predicted_bytes(self, run):
        return self.sizes.pop(0)


def asked(train):
    return {key: 512 for key in ("batch_tokens", "gradient_checkpointing") if getattr(train, key) == "auto"}


def counting(start=[0]):  # noqa: B006
    start[0] += 1
    return start[0]


@pytest.mark.parametrize(
    ("plans", "law"),
    [
        ({"settled": lambda train: {"batch_tokens": 512}}, planners.settles),
        ({"settled": lambda train: {**asked(train), "batch_size": 2}}, planners.settles),
        ({"settled": lambda train: dict.fromkeys(asked(train), "auto")}, planners.settles),
        ({"settled": lambda train: {"batch_tokens": counting()}}, planners.the_same),
        ({"settled": asked, "sizes": (10**6, 10**6 + 1, 10**7)}, planners.predicts),
        ({"settled": asked, "sizes": (10**7, 10**7, 10**6)}, planners.predicts),
        ({"settled": asked, "sizes": (1, 1, 10)}, planners.predicts),
    ],
)
def test_the_laws_catch_faults(bench, plans, law):
    class Faulty(Planner):
        """A planner."""

        def build(self, **context):
            return Plans(self, **plans)

    with pytest.raises((AssertionError, ValueError)):
        law(Brought("planners", "faulty", Faulty), bench)
