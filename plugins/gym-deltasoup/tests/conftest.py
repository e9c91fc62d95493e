"""What the tests share: the folder they lie in, and a cache of their own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gym_testkit.caches import own_cache

sys.path.insert(0, str(Path(__file__).parent))  # the tests share `merge_oracles`


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hash into a folder of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GYM_CACHE", own_cache(tmp_path_factory.mktemp("cache")))
        yield
