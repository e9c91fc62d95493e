"""The stranger's package installed, and what writes and carries out studies with it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from hills_package import CONFIG, IMPLEMENTATION, POINTS, RECIPE, SPACE, Tune, Write

from gym_testkit.metadata_files import installed_in, write_distribution
from gym_tune.study import read_study
from gym_tune.tuning import tuned


@pytest.fixture(scope="session")
def hills(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Install the stranger's package for this process and those that it starts."""
    site = tmp_path_factory.mktemp("hills")
    write_distribution(site, "gym-hills", POINTS, {"hills": CONFIG, "hills_impl": IMPLEMENTATION})
    with installed_in(site), pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH")))))
        yield site


@pytest.fixture
def write(hills: Path, tmp_path: Path) -> Write:
    """Return what writes a recipe and a study, and returns the file of the study; None leaves a key out."""

    def written(base: dict[str, Any] | None = None, **study: Any) -> Path:
        (tmp_path / "recipe.yaml").write_text(json.dumps({**RECIPE, **(base or {})}))
        told = {"recipe": "recipe.yaml", "space": SPACE, "n_trials": 3, "output": str(tmp_path / "study"), **study}
        path = tmp_path / "tune.yaml"
        path.write_text(json.dumps({key: value for key, value in told.items() if value is not None}, indent=1))
        return path

    return written


@pytest.fixture
def tune(write: Write) -> Tune:
    """Return what writes a study, carries it out in this process, and returns its outcome."""

    def carried_out(*words: str, base: dict[str, Any] | None = None, **study: Any) -> dict[str, Any]:
        return tuned(read_study(write(base, **study), words))

    return carried_out
