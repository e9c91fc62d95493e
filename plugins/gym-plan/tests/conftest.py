"""Fixtures of the planner's tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from gym_testkit.tiny import write_model

TESTS = Path(__file__).parent
#: The planner is held to the engine on the engine's own data and runs: `gym_torch_bench`, `gym_torch_plans`.
sys.path[:0] = [str(TESTS), str(TESTS.parents[1] / "gym-torch" / "tests")]
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a random Qwen3 of 2 layers and 32 dimensions with a byte tokenizer."""
    return write_model(tmp_path_factory.mktemp("models") / "tiny")
