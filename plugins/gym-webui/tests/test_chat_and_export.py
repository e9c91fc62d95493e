"""A model that answers through the server, an export, and a page of a stranger; with the real processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from webui_browser import opened

from gym_core.discovery import installed
from gym_testkit import warm

Until = Callable[[Callable[[], Any]], Any]


def test_a_model_answers_and_ends_with_the_server(folder: Path, until: Until):
    with ExitStack() as ending:
        browser = opened(folder, ending)

        def said() -> dict[str, Any]:
            found: dict[str, Any] = browser.get("/chat/state").json()["models"]["tiny"]
            assert found["state"] != "failed", found["said"]
            return found

        question = {"model": "tiny", "messages": [{"role": "user", "content": "Add 9 and 6."}]}
        assert browser.post("/chat/ask", json=question).status_code == 409
        assert browser.post("/chat/open", json={"model": "tiny"}).status_code == 200
        until(lambda: said()["state"] == "ready")
        words = {"sampling": {"temperature": 0, "max_tokens": 8}}
        events = [
            line[5:]
            for line in browser.post("/chat/ask", json=question | words).text.splitlines()
            if line.startswith("data:")
        ]
        pieces = [json.loads(event)["choices"] for event in events if "[DONE]" not in event]
        assert any(choice["finish_reason"] for choices in pieces for choice in choices)
        for wrong in (
            {"sampling": {"temperature": -5}},
            {"sampling": {"log_prompts": True}},
            {"messages": "x"},
            {"messages": []},
        ):
            assert browser.post("/chat/ask", json=question | wrong).status_code == 400, wrong
        odd = "runs/lr=1e-4 (2)"  # a name that means something else to the command
        (folder / odd).mkdir(parents=True)
        browser.post("/chat/open", json={"model": odd})
        until(lambda: browser.get("/chat/state").json()["models"][odd]["state"] == "failed")
        assert str(folder / odd) in browser.get("/chat/state").json()["models"][odd]["said"]
    assert browser.get("/chat/state").json()["models"] == {}


def test_a_model_ends_with_a_server_that_is_killed(tmp_path: Path):
    code = (
        "import subprocess, sys, time; words = [sys.executable, '-m', 'gym_core.cli.exit_with_parent', *sys.argv[1:]]; "
        "p = subprocess.Popen(words, stdin=subprocess.PIPE); time.sleep(600)"
    )
    served = ["webui", str(tmp_path), "--port", "0"]  # as `api` serves, with fewer imports
    words = [sys.executable, "-c", code, *served]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        assert server.stdout is not None
        for line in server.stdout:
            if "open http" in line:
                break
        server.send_signal(signal.SIGKILL)
        server.stdout.read()  # ends when the model has ended, which holds it open


def test_an_export_is_written_by_the_form_of_its_exporter(browser: TestClient, folder: Path, until: Until):
    done = warm.run("-m", "gym_core.cli", "train", "one.yaml", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert browser.get("/export/form", params={"name": "safetensors"}).json()["options"]
    assert browser.post("/export/start", json={"run": "runs/one", "exporter": "safetensors"}).status_code == 200

    def state() -> dict[str, Any]:
        found: dict[str, Any] = browser.get("/export/state", params={"run": "runs/one"}).json()
        return found

    until(lambda: not state()["running"])
    assert state()["exports"] == ["runs/one/export/safetensors"] and "wrote" in state()["log"]


def test_a_page_of_another_package_is_shown_when_it_is_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    place = tmp_path / "theirs"
    (place / "gym_theirs-1.0.dist-info").mkdir(parents=True)
    metadata = "Metadata-Version: 2.1\nName: gym-theirs\nVersion: 1.0\n"
    (place / "gym_theirs-1.0.dist-info/METADATA").write_text(metadata, encoding="utf-8")
    (place / "gym_theirs-1.0.dist-info/entry_points.txt").write_text(
        "[gym.panels]\nhello = gym_theirs:Hello\n", encoding="utf-8"
    )
    (place / "gym_theirs/templates").mkdir(parents=True)
    code = '''
from typing import ClassVar
from gym_webui import Panel
from gym_webui.site import Page
from starlette.routing import Route


class Hello(Panel):
    """Greets whoever looks."""

    target: ClassVar[str] = "gym_theirs:build"
    title: ClassVar[str] = "Hello"


def build(config, site):
    def show(request):
        return site.render(request, "gym_theirs/hello.html", whom=request.query_params["whom"])

    return Page([Route("/", show)])
'''
    page = "{% extends 'gym_webui/base.html' %}{% block title %}Hello{% endblock %}"
    page += "{% block body %}<p>Hello {{ whom }}{% endblock %}"
    (place / "gym_theirs/__init__.py").write_text(code, encoding="utf-8")
    (place / "gym_theirs/templates/hello.html").write_text(page, encoding="utf-8")
    monkeypatch.syspath_prepend(place)
    installed.cache_clear()
    try:
        with ExitStack() as ending:
            assert "Hello" not in opened(folder, ending).get("/runs/").text
            browser = opened(folder, ending, ("hello",))
            assert '<a href="/gym-theirs-hello/">Hello</a>' in browser.get("/runs/").text
            assert "Hello &lt;b&gt;" in browser.get("/gym-theirs-hello/", params={"whom": "<b>"}).text
    finally:
        installed.cache_clear()
