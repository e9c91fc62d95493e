"""Fixtures of the tests of embedding models."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from gym_testkit import caches

sys.path.insert(0, str(Path(__file__).parent))  # the tests share `related_rows`
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the tokens of every test apart."""
    monkeypatch.setenv("GYM_CACHE", caches.own_cache(tmp_path / "cache"))
