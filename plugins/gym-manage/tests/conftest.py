"""A package with a toy of several kinds, on the path of this process as pip would have put it there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gym_testkit.metadata_files import forget_installed, installed_in, write_distribution

TOY = '''
from typing import Annotated, ClassVar
from pydantic import SerializeAsAny
from gym_core import Algorithm, Artifact, Backend, Exporter, Slot, hookimpl
from gym_data.kinds import Data
from gym_data import Source

class Toy(Algorithm):
    """Learns nothing, quickly."""
    strength: float = 1.0
    """How strongly."""
    def build(self, run, model):
        made = run.output / "model"
        made.mkdir()
        (made / "words.txt").write_text(f"{model} {self.strength}")
        return Trained(Artifact(made))

class Trained:
    def __init__(self, artifact):
        self.artifact = artifact
    def train(self):
        return self.artifact

class Words(Backend):
    """A model made of words."""
    path: str
    """Which words."""
    def build(self, run):
        return self.path

class Lines(Source):
    """Lines of a file."""
    path: str
    """The file."""

class Rows(Data):
    """Rows."""
    sources: list[Annotated[SerializeAsAny[Source], Slot("sources", default="toy-lines", bare="path")]]
    """Where rows come from."""

class Shout(Exporter):
    """Writes in capitals."""
    mark: str = "!"
    """What ends the text."""
    def build(self):
        return self
    def export(self, artifact, into):
        if self.mark == "exit":
            raise SystemExit(0)
        into.parent.mkdir()
        into.write_text(artifact.path.name + self.mark)
        return into

class Watch:
    """Wraps one hook and replaces another."""
    @hookimpl(wrapper=True)
    def load_model(self, run):
        return (yield)
    @hookimpl
    def export(self, artifact):
        return None
'''
POINTS = """[gym.algorithms]
toy = {module}:Toy
[gym.backends]
toy-words = {module}:Words
[gym.data]
toy-rows = {module}:Rows
[gym.sources]
toy-lines = {module}:Lines
[gym.dialects]
say = {module}:Shout
[gym.exporters]
toy-shout = {module}:Shout
[gym.hooks]
toy-watch = {module}:Watch
"""
Add = Callable[[str], None]
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path) -> Iterator[Install]:
    """Return what writes the metadata of a distribution, in a folder that is seen alone."""
    site = tmp_path / "alone"
    site.mkdir()

    def make(dist: str, points: str, *needs: str) -> None:
        write_distribution(site, dist, points, requires=needs)
        forget_installed()

    with installed_in(site, alone=True):
        yield make


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Add]:
    """Return what puts the toy on the path under the name of a distribution."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def make(dist: str) -> None:
        module = dist.replace("-", "_")
        write_distribution(site, dist, POINTS.replace("{module}", module), {module: TOY})
        forget_installed()

    with installed_in(site):
        yield make
