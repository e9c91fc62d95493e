"""Fixtures of the tests of gym-personalization."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from gym_testkit.tiny import write_model

sys.path.insert(0, str(Path(__file__).parent))
from gym_personalization_bench import Crowd


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a random Qwen3 of 2 layers and 32 dimensions."""
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def crowd(tmp_path_factory: pytest.TempPathFactory, model_path: Path) -> Crowd:
    return Crowd(tmp_path_factory.mktemp("crowd"), model_path)
