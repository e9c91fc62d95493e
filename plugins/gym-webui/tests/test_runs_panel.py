"""Runs as a page shows them: read from the disk, whatever lies there, started once, stopped and continued."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from webui_browser import RECIPE, opened, record

from gym_core.outputlock import OutputLock
from gym_webui import run_files
from gym_webui.background_jobs import lock_of

EVIL = "<img src=x onerror=alert(1)>"
Until = Callable[[Callable[[], Any]], Any]


def state(browser: TestClient, run: str) -> dict[str, Any]:
    found: dict[str, Any] = browser.get("/runs/state", params={"run": run}).json()
    return found


def test_a_run_is_started_once_outlives_its_server_and_is_continued(folder: Path, until: Until):
    """Two clicks, a second server, a stop that leaves a checkpoint, and a process that nobody waits for."""
    text = RECIPE.replace("max_steps: 3", "max_steps: 20000")
    with ExitStack() as ending:
        first = opened(folder, ending)

        def click(_: int) -> int:
            return first.post("/recipe/start", json={"name": "one.yaml", "text": text}).status_code

        with ThreadPoolExecutor(2) as clicks:
            assert sorted(clicks.map(click, range(2))) == [200, 409]
        assert state(first, "runs/one")["status"] in ("starting", "running")
    with ExitStack() as ending:
        second = opened(folder, ending)
        until(lambda: (state(second, "runs/one")["step"] or 0) > 2)
        found = state(second, "runs/one")
        assert found["status"] == "running" and found["total"] == 20000 and "step" in found["log"]
        assert second.post("/runs/continue", json={"run": "runs/one"}).status_code == 409
        assert second.get("/runs/curves", params={"run": "runs/one"}).json()["curves"]["loss"]
        assert second.post("/runs/stop", json={"run": "runs/one"}).json() == {"stopping": True}
        until(lambda: state(second, "runs/one")["status"] == "stopped")
        assert list((folder / "runs/one/checkpoints").glob("step-*"))
        before = state(second, "runs/one")["step"]
        assert second.post("/runs/continue", json={"run": "runs/one"}).status_code == 200
        until(lambda: state(second, "runs/one")["status"] == "running" and state(second, "runs/one")["step"] > before)
        assert second.post("/runs/stop", json={"run": "runs/one"}).status_code == 200
        until(lambda: state(second, "runs/one")["status"] == "stopped")
        assert second.post("/runs/stop", json={"run": "runs/one"}).status_code == 409


def test_a_run_of_a_terminal_is_shown_as_any_other(browser: TestClient, folder: Path):
    run = record(folder / "by-hand", status="running", recipe={"algorithm": {"name": "sft"}})
    with OutputLock(run):
        assert state(browser, "by-hand")["status"] == "running"
        assert not lock_of(run, "train").exists()
    assert state(browser, "by-hand")["status"] == "killed"


def test_errors_are_told_with_their_lines(browser: TestClient, folder: Path):
    problem = {"why": f"is wrong {EVIL}", "where": "recipe.yaml:3", "key": "train.epochs", "fix": "write 1"}
    record(folder / "bad", status="failed", error={"problems": [problem]})
    found = state(browser, "bad")
    assert found["status"] == "failed"
    assert found["problems"][0].split("\n") == ["recipe.yaml:3", f"  train.epochs: is wrong {EVIL}", "  -> write 1"]


def test_a_start_that_fails_before_there_is_a_record_is_told_by_its_log(
    browser: TestClient, folder: Path, until: Until
):
    (folder / "runs/one").mkdir(parents=True)
    (folder / "runs/one/other.txt").write_text("not a run", encoding="utf-8")
    assert browser.post("/recipe/start", json={"name": "one.yaml", "text": RECIPE}).status_code == 200
    until(lambda: not state(browser, "runs/one")["running"])
    found = state(browser, "runs/one")
    assert found["status"] == "failed" and "holds no run" in found["problems"][0]


def test_names_of_runs_are_text(browser: TestClient, folder: Path):
    name = "<img src=x onerror=alert(1)>"
    record(folder / name, status="finished", recipe={"model": {"path": EVIL}})
    page = browser.get("/runs/", params={"run": name})
    assert page.status_code == 200 and "<img" not in page.text and "&lt;img" in page.text
    for path in ("/chat/", "/export/", "/runs/"):
        assert "<img" not in browser.get(path, params={"model": name, "file": ""}).text
    assert browser.get("/runs/list").headers["content-type"] == "application/json"


BROKEN: list[Any] = [None, [], "x", 3, {"recipe": [], "error": 1, "status": []},
    {"error": {"problems": [1, {"why": None}]}, "status": "failed"},
    {"recipe": {"model": 3, "algorithm": None}, "started": 1, "seconds": "x"}]  # fmt: skip


@pytest.mark.parametrize("value", BROKEN)
def test_a_record_of_any_form_is_shown(browser: TestClient, folder: Path, value: Any):
    run = record(folder / "odd")
    (run / "run.json").write_text(json.dumps(value), encoding="utf-8")
    assert state(browser, "odd")["status"] in ("failed", "killed")
    assert browser.get("/runs/", params={"run": "odd"}).status_code == 200
    assert len(browser.get("/runs/list").json()["runs"]) == 1


def test_damaged_and_huge_files_do_not_take_the_page_down(browser: TestClient, folder: Path):
    run = record(folder / "huge", status="finished")
    line = json.dumps({"step": 1, "loss": 2.0}) + "\n"
    odd = [
        "{",
        "[" * 50_000,
        '{"step": "x"}',
        '{"step": true, "loss": 1}',
        '{"step": 2, "loss": NaN}',
        '{"step": 1e999, "loss": 1}',
        "\x00",
        "9" * 5000,
    ]
    text = "\n".join(odd) + "\n" + line * 1_000_000 + '{"step": 2, "loss": 4.0}\n{"step": 3, "lo'
    (run / "metrics.jsonl").write_text(text, encoding="utf-8")
    (run / "trainer_log.jsonl").write_bytes(os.urandom(200_000))
    (run / ".lock").write_text('{"pid": -1}', encoding="utf-8")
    began = time.monotonic()
    points = browser.get("/runs/curves", params={"run": "huge"}).json()["curves"]["loss"]
    assert len(points) <= run_files.POINTS and points[0] == [1.0, 2.0] and 2.0 < points[-1][1] < 4.0
    assert state(browser, "huge")["metrics"]["loss"] == 4.0 and time.monotonic() - began < 30
    (run / "run.json").write_bytes(b"[" * (run_files.RECORD_BYTES + 1))
    assert state(browser, "huge")["status"] == "failed"
    for name in ("run.json", "metrics.jsonl", "trainer_log.jsonl", ".lock"):
        (run / name).unlink()
        (run / name).mkdir()
    assert browser.get("/runs/list").status_code == 200


def test_a_run_of_another_host_is_shown_and_not_stopped(browser: TestClient, folder: Path):
    """The number of its process may be that of anybody's here."""
    run = record(folder / "shared", status="running")
    with subprocess.Popen(["sleep", "60"]) as stranger, OutputLock(run):
        (run / ".lock").write_text(json.dumps({"pid": stranger.pid, "host": "elsewhere"}), encoding="utf-8")
        assert state(browser, "shared")["status"] == "running"
        answer = browser.post("/runs/stop", json={"run": "shared"})
        assert answer.status_code == 409 and "it is on elsewhere" in answer.text
        assert stranger.poll() is None
        stranger.kill()


def test_links_out_of_the_folder_are_not_read(browser: TestClient, folder: Path):
    outside = record(folder.parent / "outside", status="finished")
    (folder / "linked").symlink_to(outside)
    run = record(folder / "run", status="finished")
    (folder.parent / "secret").write_text('{"step": 1, "secret": 1}\n', encoding="utf-8")
    (run / "metrics.jsonl").symlink_to(folder.parent / "secret")
    (run / ".webui-train.log").symlink_to(folder.parent / "secret")
    assert [each["run"] for each in browser.get("/runs/list").json()["runs"]] == ["run"]
    assert "secret" not in browser.get("/runs/state", params={"run": "run"}).text


def test_the_server_never_imports_a_tensor_library(folder: Path):
    """Neither for its pages, nor for what they ask."""
    code = """
import sys
from contextlib import ExitStack
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from webui_browser import RECIPE, opened
with ExitStack() as ending:
    browser = opened(Path.cwd(), ending)
    for path in ("/recipe/", "/runs/", "/chat/", "/export/", "/runs/list", "/recipe/form?kind=adapters&name=lora"):
        assert browser.get(path).status_code == 200, path
    assert browser.post("/recipe/read", json={"text": RECIPE}).json()["problems"] == []
print(*sorted({"torch", "numpy", "transformers", "datasets"} & set(sys.modules)))
"""
    words = [sys.executable, "-c", code, str(Path(__file__).parent)]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout == "\n", done.stderr + done.stdout
