"""Fixtures of the exporters' tests. None uses more than one thread."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gym_testkit.tiny import write_model


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a random Qwen3 of 2 layers and 32 dimensions with a byte tokenizer."""
    return write_model(tmp_path_factory.mktemp("models") / "tiny")
