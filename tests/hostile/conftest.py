"""Hostile distributions, written into a folder that stands on the path of a subprocess like another site-packages."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the attempts are shared data

#: A healthy plugin that needs no tensor library: what must keep working whatever stands beside it.
TOY = '''
from pathlib import Path
from typing import ClassVar

from gym_core import Algorithm, Artifact


class Toy(Algorithm):
    """Writes one file."""

    target: ClassVar[str] = "{module}:Trainer"
    steps: int = 3
    """How many."""


class Trainer:
    def __init__(self, config, run, model):
        self.config, self.run = config, run

    def train(self):
        made = self.run.output / "model"
        made.mkdir(exist_ok=True)
        (made / "weights.txt").write_text("1 " * self.config.steps)
        return Artifact(made)
'''


@dataclass
class Site:
    """A folder of installed distributions."""

    root: Path

    def add(
        self,
        dist: str,
        code: str | None = None,
        *,
        entry_points: str | bytes | None = None,
        metadata: str | bytes | None = None,
        requires: tuple[str, ...] = (),
        name: str | None = None,
    ) -> None:
        """Install a distribution whose algorithm `name` is the class `Toy` of a module with this code."""
        module = dist.replace("-", "_")
        if code is not None:
            (self.root / f"{module}.py").write_text(textwrap.dedent(code).replace("{module}", module))
        info = self.root / f"{module}-1.0.dist-info"
        info.mkdir()
        if entry_points is None:
            entry_points = f"[gym.algorithms]\n{name or dist.removeprefix('gym-')} = {module}:Toy\n"
        if metadata is None:
            lines = ["Metadata-Version: 2.1", f"Name: {dist}", "Version: 1.0", f"Summary: {dist} for tests"]
            metadata = "\n".join([*lines, *(f"Requires-Dist: {need}" for need in requires), "", ""])
        for file, content in (("entry_points.txt", entry_points), ("METADATA", metadata)):
            if content:
                (info / file).write_bytes(content.encode() if isinstance(content, str) else content)

    def gym(self, *arguments: str, timeout: float = 100, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the real command line with this folder on its path."""
        return subprocess.run(
            [sys.executable, "-m", "gym_core.cli", *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            cwd=self.root.parent,
            env={**os.environ, "PYTHONPATH": str(self.root), "NO_COLOR": "1", **environment},
            timeout=timeout,
            check=False,
        )

    def recipe(self, algorithm: str, **more: object) -> str:
        """Write a recipe that names this algorithm and return its path."""
        path = self.root.parent / f"{algorithm.replace('/', '-')}.yaml"
        lines = {"algorithm": algorithm, "output": f"runs/{path.stem}", **more}
        path.write_text("".join(f"{key}: {value}\n" for key, value in lines.items()))
        return str(path)


#: Faults that stop one plugin: what its module says, what its metadata say, and what the user must be told.
BROKEN: Mapping[str, tuple[dict[str, object], str]] = {
    "raises": ({"code": "raise RuntimeError('the licence server is down')"}, "the licence server is down"),
    "exits": ({"code": "import sys; sys.exit('bye')"}, "SystemExit"),
    "panics": ({"code": "class Panic(BaseException): ...\nraise Panic('index out of bounds')"}, "index out of bounds"),
    "syntax": ({"code": "def ("}, "SyntaxError"),
    "recurses": ({"code": "def deeper():\n    deeper()\ndeeper()"}, "RecursionError"),
    "lacks": (
        {"code": "import frobnicator_that_is_not_there", "requires": ("frobnicator-that-is-not-there>=2",)},
        "pip install 'frobnicator-that-is-not-there>=2'",
    ),
    "absent": ({"code": None}, "gym_absent"),
    "attribute": ({"code": "Other = 1"}, "Toy"),
    "function": ({"code": "def Toy(): ..."}, "not a subclass"),
    "wrongkind": (
        {"code": "from gym_core import Exporter\nclass Toy(Exporter):\n    'An exporter.'"},
        "not a subclass",
    ),
    "future": ({"code": TOY, "requires": ("gym-core>=99",)}, "gym-core>=99"),
    "hangs": ({"code": "import time\ntime.sleep(3600)"}, "did not end within"),
}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """An empty folder with a healthy plugin `toy`."""
    root = tmp_path / "site"
    root.mkdir()
    made = Site(root)
    made.add("gym-toy", TOY)
    return made


@pytest.fixture
def broken(site: Site) -> dict[str, str]:
    """Every plugin of `BROKEN`, installed; returns what must be said of each, by name."""
    for name, (options, _) in BROKEN.items():
        site.add(f"gym-{name}", **options)  # type: ignore[arg-type]
    return {name: said for name, (_, said) in BROKEN.items()}


@pytest.fixture(scope="session")
def site_class() -> type[Site]:
    """What makes a folder of installed distributions."""
    return Site


@pytest.fixture(scope="session")
def toy() -> str:
    """Code of the healthy plugin."""
    return TOY
