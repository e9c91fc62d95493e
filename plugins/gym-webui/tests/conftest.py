"""A folder with a server over it, without its socket: the tests speak to the application behind its check of access."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

sys.path.insert(0, str(Path(__file__).parent))  # the tests share `webui_browser`

from webui_browser import RECIPE, opened


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a recipe and its rows."""
    place = tmp_path / "served"
    place.mkdir()
    rows = [{"instruction": f"{number}+1?", "output": str(number + 1)} for number in range(6)]
    (place / "rows.json").write_text(json.dumps(rows), encoding="utf-8")
    (place / "one.yaml").write_text(RECIPE, encoding="utf-8")
    return place


@pytest.fixture
def browser(folder: Path) -> Iterator[TestClient]:
    """A browser that has followed the link."""
    with ExitStack() as ending:
        yield opened(folder, ending)


@pytest.fixture
def until() -> Callable[[Callable[[], Any]], Any]:
    """Wait until something is true, and return it."""

    def wait(ask: Callable[[], Any], seconds: float = 240.0) -> Any:
        end = time.monotonic() + seconds
        while not (found := ask()):
            assert time.monotonic() < end, "it did not come true in time"
            time.sleep(0.2)
        return found

    return wait
