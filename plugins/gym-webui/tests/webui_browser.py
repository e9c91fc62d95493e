"""What the tests share: a browser over a folder without a socket, a recipe, and records of runs."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from gym_serve.api.options import ApiOptions
from gym_webui.access import Access
from gym_webui.serving import application, panels
from gym_webui.site import Site

TOKEN = "a-token-of-the-tests"
HERE = "http://127.0.0.1"
RECIPE = """model: tiny
data: rows.json
algorithm: sft
adapter: {name: lora, rank: 2}
train: {max_steps: 3, batch_size: 2, log_every: 1, plot: false}
output: runs/one
"""


def opened(folder: Path, ending: ExitStack, names: tuple[str, ...] = (), allowed: tuple[Path, ...] = ()) -> TestClient:
    """Return a browser that has followed the link to a server of this folder."""
    site = Site(folder.resolve(), allowed)
    guarded = Access(application(site, panels(names), ending), ApiOptions(), TOKEN, 7860)
    client = TestClient(guarded, base_url=HERE, follow_redirects=False)
    assert client.get(f"/?token={TOKEN}").status_code == 303
    return client


def record(folder: Path, **values: Any) -> Path:
    """Write the record of a run that was started elsewhere, and return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps(values), encoding="utf-8")
    return folder
