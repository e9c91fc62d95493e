"""A small random model for each test, twice."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # the tests share `adapters_bench`

from adapters_bench import Bench


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of all random models."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Draw the same at random in every test, whichever ran before."""
    torch.manual_seed(0)


@pytest.fixture(scope="module", params=[("qwen3", True), ("llama", False)], ids=["qwen3-tied", "llama"])
def bench(request: pytest.FixtureRequest, model_folder: Path) -> Bench:
    """Return a tied Qwen3, then an untied Llama."""
    return Bench(*request.param, model_folder)
