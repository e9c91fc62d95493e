"""Fixtures of the drill's tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from gym_core.execution import execute

#: The parts of a drill look at a run of the engine's own tests: `gym_torch_bench`.
sys.path[:0] = [str(Path(__file__).parents[2] / "gym-torch" / "tests"), str(Path(__file__).parent)]
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Output of a finished run, beside the rows it learned from."""
    from drill_runs import recipe, rows

    folder = tmp_path_factory.mktemp("original")
    rows(folder / "rows.jsonl")
    execute(recipe(folder / "run"))
    return folder / "run"
