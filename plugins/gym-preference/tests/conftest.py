"""Fixtures of the tests of preference learning."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from gym_testkit.tiny import write_model

sys.path.insert(0, str(Path(__file__).parent))  # the tests share `numeric` and `preference_cases`
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep tokens and scores of every test apart."""
    monkeypatch.setenv("GYM_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a random Qwen3 of 2 layers and 32 dimensions with a byte tokenizer."""
    return write_model(tmp_path_factory.mktemp("models") / "tiny")
