"""Toy distributions made on the spot: a folder on `sys.path` with modules and real metadata, found as any installed one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gym_core.discovery import named
from gym_testkit.metadata_files import forget_installed, installed_in, write_distribution

Install = Callable[..., Path]

TOY = '''
from typing import Annotated, ClassVar
from pydantic import SerializeAsAny
from gym_core import Algorithm, Backend, Component, Exporter, Quantizer, Slot, Strategy
from gym_core.loading import base_class

class Toy(Algorithm):
    """Learns nothing, quickly."""
    target: ClassVar[str] = "toy_impl:Trainer"
    needs: ClassVar[tuple[str, ...]] = ("model",)
    strength: float = 1.0
    """How strongly (`power` in physics)."""

class ToyModel(Backend):
    """A model made of words."""
    target: ClassVar[str] = "toy_impl:load"
    path: str
    """Which words."""

class Origin(Component):
    """A kind of a plugin's own."""
    kind: ClassVar[str] = "origins"

class Rows(base_class("data")):
    """Rows."""
    target: ClassVar[str] = "toy_impl:rows"
    sources: list[Annotated[SerializeAsAny[Origin], Slot("origins", default="lines", bare="path")]]
    """Where rows come from."""
    cutoff: int = 10
    """Longest row."""

class Lines(Origin):
    """Lines of a file."""
    path: str
    """The file."""
    limit: int = 0
    """How many; 0 is all."""

class Shrink(Quantizer):
    """Drops the last letter."""
    target: ClassVar[str] = "toy_impl:Shrink"
    letters: int = 1
    """How many letters go."""

class Alone(Strategy):
    """One process."""
    target: ClassVar[str] = "toy_impl:alone"

def spoken(data, found):
    """Translate a dialect: `say` is the model, `loudly` how strongly, and the seed is 42 where it is left out."""
    from gym_core.dialect import fill_own, parted, put
    sections, said = parted(data)
    put(sections, ("algorithm",), {"name": "toy"}, "say", found)
    put(sections, ("model",), said.pop("say"), "say", found)
    if "loudly" in said:
        put(sections, ("algorithm", "strength"), said.pop("loudly"), "loudly", found)
    fill_own(sections, {"seed": 42} | said, found)
    return sections

def astray(data, found):
    return {"everything": 1}

class Shout(Exporter):
    """Writes in capitals."""
    target: ClassVar[str] = "toy_impl:Shout"
    mark: str = "!"
    """What ends the text."""
'''

#: The kind of a section of which the kernel asks nothing, as the package brings it that reads the section.
TOY_KINDS = '''
from typing import ClassVar
from gym_core import Component

class Data(Component):
    """Examples."""
    kind: ClassVar[str] = "data"
'''

TOY_IMPL = '''
from dataclasses import replace
from pathlib import Path
from gym_core import Artifact, hookimpl
from gym_core.ranks import Ranks

def alone(config, output):
    return Ranks()

def load(config, run):
    return config.path

def rows(config, run):
    return config.sources

class Trainer:
    def __init__(self, config, run, model):
        self.config, self.run, self.model = config, run, model
    def train(self):
        print("words of a package")
        path = self.run.output / "model"
        path.mkdir(exist_ok=True)
        (path / "words.txt").write_text(f"{self.model} {self.config.strength}")
        return Artifact(path)

class Shrink:
    def __init__(self, config):
        self.config = config
    def quantize(self, run, artifact, into):
        into.mkdir()
        (into / "words.txt").write_text((artifact.path / "words.txt").read_text()[: -self.config.letters])
        return replace(artifact, path=into)

class Shout:
    def __init__(self, config):
        self.config = config
    def export(self, artifact, into):
        into.mkdir(parents=True)
        (into / "words.txt").write_text((artifact.path / "words.txt").read_text().upper() + self.config.mark)
        return into

class Watch:
    """Wraps every hook and notes the order."""
    seen = []
    @hookimpl(wrapper=True)
    def load_model(self, run):
        self.seen.append("load_model")
        return (yield)
    @hookimpl
    def build_trainer(self, run, model):
        self.seen.append(f"build_trainer {model}")
    @hookimpl(wrapper=True)
    def quantize(self, artifact):
        self.seen.append("quantize")
        return (yield)
    @hookimpl(tryfirst=True)
    def export(self, artifact, into):
        self.seen.append(f"export {artifact.path.name}")

class Misfit:
    @hookimpl
    def export(self, artifact, everywhere):
        pass

class Misspelt:
    @hookimpl
    def load_modle(self, run):
        pass
'''

TOY_MODULES = {"toy": TOY, "toy_impl": TOY_IMPL, "toy_kinds": TOY_KINDS}
TOY_POINTS = {
    "gym.algorithms": {"toy": "toy:Toy"},
    "gym.backends": {"transformers": "toy:ToyModel"},
    "gym.data": {"dataset": "toy:Rows"},
    "gym.kinds": {"origins": "toy:Origin", "data": "toy_kinds:Data"},
    "gym.origins": {"lines": "toy:Lines"},
    "gym.quantizers": {"shrink": "toy:Shrink"},
    "gym.strategies": {"alone": "toy:Alone"},
    "gym.exporters": {"shout": "toy:Shout"},
    "gym.hooks": {"watch": "toy_impl:Watch", "misfit": "toy_impl:Misfit", "misspelt": "toy_impl:Misspelt"},
    "gym.dialects": {"say": "toy:spoken", "stray": "toy:astray", "seed": "toy:spoken"},
}


@pytest.fixture
def install(tmp_path: Path) -> Iterator[Install]:
    """Install toy distributions for one test, seen alone: what the developer has installed does not matter."""
    site = tmp_path / "site"
    site.mkdir()

    def make(name: str, modules: Mapping[str, str], points: Mapping[str, Mapping[str, str]], **more: Any) -> Path:
        write_distribution(site, name, points, modules, **more)
        forget_installed()
        return site

    with installed_in(site, alone=True):
        yield make


@pytest.fixture
def toys(install: Install) -> Install:
    """Install one toy of every kind that a run touches."""
    install("gym-toy", TOY_MODULES, TOY_POINTS)
    return install


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for `PYTHONPATH` with the toys installed, for tests that start processes."""
    folder = tmp_path_factory.mktemp("site")
    # Names of their own: these processes also see whatever the developer has installed.
    points = {group: names for group, names in TOY_POINTS.items() if group != "gym.dialects"}
    points |= {"gym.backends": {"words": "toy:ToyModel"}, "gym.data": {"rows": "toy:Rows"}}
    points["gym.kinds"] = {name: kind for name, kind in points["gym.kinds"].items() if not named("kinds", name)}
    papers = {"toy paper": "https://arxiv.org/abs/1706.03762"}
    write_distribution(folder, "gym-toy", points, TOY_MODULES, urls=papers)
    return folder
