"""Fixtures of the tests of gym-personalization."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from gym_personalization_bench import Crowd

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def crowd(tmp_path_factory: pytest.TempPathFactory, model_path: Path) -> Crowd:
    return Crowd(tmp_path_factory.mktemp("crowd"), model_path)
