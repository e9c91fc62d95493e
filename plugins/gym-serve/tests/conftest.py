"""What the tests share: neighbours that can be imported, and the engine of a stranger as an installed package."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gym_testkit.metadata_files import installed_in, write_distribution

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # under `--import-mode=importlib` tests cannot import their neighbours


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    """A folder with the package of a stranger who brings the engine `parrot`, as pip would have left it."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(HERE / "parrot.py", folder)
    write_distribution(folder, "gym-parrot", {"gym.servers": {"parrot": "parrot:Parrot"}})
    return folder


@pytest.fixture
def strange(site) -> Iterator[None]:
    """That package, installed for this process."""
    with installed_in(site):
        yield


@pytest.fixture(scope="session")
def environment(site) -> dict[str, str]:
    """The environment of a process that finds it."""
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "HF_HUB_OFFLINE": "1"}
