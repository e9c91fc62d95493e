"""A second distribution with the names of the first: every conflict has a way out, and none makes another run of a run."""

from __future__ import annotations

import json

import pytest

PLUGIN = 3
#: What a package of ours brings that recipes take without naming it, and a stranger's with the same names.
ENGINE = '''
from typing import ClassVar
from gym_core import Algorithm, Artifact, Exporter, Strategy
from gym_core.loading import base_class
from gym_core.ranks import Ranks


class Toy(Algorithm):
    """Writes one file."""

    target: ClassVar[str] = "{module}:Trainer"
    steps: int = 3
    """How many."""


class AdamW(base_class("optimizers")):
    """Updates nothing."""


class DDP(Strategy):
    """One process."""

    target: ClassVar[str] = "{module}:ranks"


class Text(Exporter):
    """Writes text."""

    target: ClassVar[str] = "{module}:Writer"


def translate(data, found):
    from gym_core.dialect import fill_own, parted

    sections, beside = parted(data)
    fill_own(sections, {key: value for key, value in beside.items() if key != "thingy"}, found)
    return sections | {"algorithm": "{module}/thing".replace("_", "-")}


def ranks(config, output):
    return Ranks()


class Writer:
    def __init__(self, config):
        pass

    def export(self, artifact, into):
        into.mkdir(parents=True)
        (into / "text.txt").write_text("{module}")
        return into


class Trainer:
    def __init__(self, config, run, model):
        self.run = run

    def train(self):
        made = self.run.output / "model"
        made.mkdir(exist_ok=True)
        (made / "weights.txt").write_text("{module}")
        return Artifact(made)
'''
POINTS = """[gym.algorithms]
thing = {module}:Toy
[gym.optimizers]
adamw = {module}:AdamW
[gym.strategies]
ddp = {module}:DDP
[gym.exporters]
text = {module}:Text
[gym.dialects]
thingy = {module}:translate
"""


#: The kind of the optimizers, where no package that brings it is installed.
KIND = '''
from typing import ClassVar
from gym_core import Component


class Optimizer(Component):
    """Updates parameters."""

    kind: ClassVar[str] = "optimizers"
'''


@pytest.fixture
def first(site):
    """The distribution `gym-first`, alone, and a finished run of it."""
    from gym_core.discovery import installed, named

    if not named("kinds", "optimizers"):
        site.add("gym-kind", KIND, entry_points="[gym.kinds]\noptimizers = gym_kind:Optimizer\n")
    site.add("gym-first", ENGINE, entry_points=POINTS.replace("{module}", "gym_first"))
    others = {entry.dist for group in installed().entries.values() for entry in group} - {"gym-core", "gym-manage"}
    (site.root.parent / "gym.toml").write_text("[plugins]\n" + "".join(f"{name} = false\n" for name in sorted(others)))
    assert site.gym("train", site.recipe("thing")).returncode == 0
    return site


@pytest.fixture
def both(first):
    """The same, and then a stranger's distribution with the same names."""
    first.add("gym-aaa", ENGINE, entry_points=POINTS.replace("{module}", "gym_aaa"))
    return first


def test_the_conflict_names_both_and_every_way_out(both):
    done = both.gym("validate", both.recipe("thing"))
    assert done.returncode == PLUGIN
    assert "gym-aaa 1.0 and gym-first 1.0" in done.stderr
    assert "gym plugins choose optimizers/adamw" in done.stderr and "`gym-first/adamw`" in done.stderr


WAYS = {
    "disabled": ("plugins", "disable", "gym-aaa"),
    "disabled in the project": ("plugins", "disable", "gym-aaa", "--project"),
    "chosen": ("plugins", "choose", "*", "gym-first", "--project"),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_finished_run_is_still_that_run(both, way):
    names = ("algorithms/thing", "optimizers/adamw", "strategies/ddp", "exporters/text")
    environment = {"XDG_CONFIG_HOME": str(both.root.parent / "config")}
    for name in names if "*" in WAYS[way] else ("",):
        done = both.gym(*(name if part == "*" else part for part in WAYS[way]), **environment)
        assert done.returncode == 0, done.stderr
    again = both.gym("train", both.recipe("thing"), **environment)
    assert again.returncode == 0 and "finished already" in again.stdout, again.stderr + again.stdout


def test_an_explicit_origin_is_the_same_run_and_an_other_one_is_not(both):
    explicit = {"optimizer": "gym-first/adamw", "distributed": "gym-first/ddp"}
    again = both.gym("train", both.recipe("gym-first/thing", output="runs/thing", **explicit))
    assert again.returncode == 0 and "finished already" in again.stdout, again.stderr + again.stdout
    other = both.gym("train", both.recipe("gym-aaa/thing", output="runs/thing", **explicit))
    assert other.returncode == 5
    assert "package of algorithm 'gym-first 1.0' -> 'gym-aaa 1.0'" in other.stderr


def test_a_finished_run_is_exported_by_what_made_it(both):
    done = both.gym("export", "runs/thing", "--to", "gym-first/text")
    assert done.returncode == 0, done.stderr
    assert (both.root.parent / "runs/thing/export/text/text.txt").read_text() == "gym_first"


def test_dialects_have_the_same_way_out(both):
    path = both.root.parent / "thingy.yaml"
    path.write_text("thingy: 1\noutput: runs/thing\noptimizer: gym-first/adamw\ndistributed: gym-first/ddp\n")
    done = both.gym("train", str(path))
    assert done.returncode == PLUGIN and "gym plugins choose dialects/thingy gym-" in done.stderr, done.stderr
    assert both.gym("plugins", "choose", "dialects/thingy", "gym-first", "--project").returncode == 0
    assert "finished already" in both.gym("train", str(path)).stdout


def test_list_shows_what_is_set_aside_and_a_recipe_that_names_it_says_so(both):
    both.gym("plugins", "disable", "gym-aaa/adamw", "--project")
    listed = both.gym("plugins", "list").stdout
    assert "disabled  optimizers/adamw  gym-aaa 1.0" in listed
    told = json.loads(both.gym("plugins", "list", "--json").stdout)
    assert [(entry["name"], entry["dist"]) for entry in told["disabled"] if entry["dist"] == "gym-aaa"] == [
        ("adamw", "gym-aaa")
    ]
    asked = both.gym("validate", both.recipe("gym-first/thing", optimizer="gym-aaa/adamw", distributed="gym-first/ddp"))
    assert (
        asked.returncode == PLUGIN and "is disabled in" in asked.stderr and "gym plugins enable gym-aaa" in asked.stderr
    )
    both.gym("plugins", "enable", "gym-aaa/adamw", "--project")
    assert "disabled  optimizers/adamw  gym-aaa" not in both.gym("plugins", "list").stdout
