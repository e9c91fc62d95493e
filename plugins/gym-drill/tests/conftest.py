"""Fixtures of the drill's tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from gym_testkit.tiny import write_model

#: The parts of a drill look at a run of the engine's own tests: `gym_torch_bench`.
sys.path.insert(0, str(Path(__file__).parents[2] / "gym-torch" / "tests"))
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a random Qwen3 of 2 layers and 32 dimensions with a byte tokenizer."""
    return write_model(tmp_path_factory.mktemp("models") / "tiny")
