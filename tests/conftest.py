"""What the tests of the whole tree share: the real data, the command line in a process, recipes for the tiny model."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gym_testkit import warm
from gym_testkit.caches import own_cache

ROOT = Path(__file__).parents[1]
Gym = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def data() -> Path:
    """Return the folder of real datasets; `GYM_DATA` names it, else it lies beside the checkout."""
    folder = Path(os.environ.get("GYM_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip("no real data: set GYM_DATA to a folder with alpaca_en_demo.json and its dataset_info.json")
    return folder


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cache directory of this session's own."""
    return Path(own_cache(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def environment(cache: Path) -> dict[str, str]:
    """Return the environment of a child process: one thread, own cache, nothing downloaded."""
    return {
        **os.environ,
        "GYM_CACHE": str(cache),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "NO_COLOR": "1",
        "COLUMNS": "120",
    }


@pytest.fixture
def start(environment: dict[str, str], tmp_path: Path) -> Callable[..., warm.Process]:
    """Start the command line in a process of its own, forked from a warm one, in an empty directory."""
    return lambda *arguments: warm.start("-m", "gym_core.cli", *arguments, cwd=tmp_path, env=environment)


@pytest.fixture
def gym(environment: dict[str, str], tmp_path: Path) -> Gym:
    """Run the command line in such a process to its end."""

    def run(*arguments: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        return warm.run("-m", "gym_core.cli", *arguments, cwd=tmp_path, env=environment, timeout=timeout)

    return run
