"""A small random model for each test, twice."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the tests share `adapters_bench`

from adapters_bench import Bench


@pytest.fixture(params=[("qwen3", True), ("llama", False)], ids=["qwen3-tied", "llama"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    """Return a tied Qwen3, then an untied Llama."""
    return Bench(*request.param, tmp_path / "base")
