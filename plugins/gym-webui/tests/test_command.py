"""The command itself, by its socket, and what a browser makes of its pages."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder by the command, and yield the link that it prints."""
    command = [sys.executable, "-m", "gym_core.cli", "webui", str(folder), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            found = re.search(r"open (http://127\.0\.0\.1:\d+/\?token=\S+)", server.stderr.readline())
            assert found is not None, server.stderr.read()
            yield found[1]
        finally:
            server.send_signal(signal.SIGTERM)
            assert server.wait(30) == 0, server.stderr.read()


def test_the_link_opens_the_first_page_and_a_signal_ends_the_server(folder: Path):
    with served(folder) as link:
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with browser.open(link, timeout=60) as page:
            assert page.url.endswith("/recipe/") and b"runs/first" in page.read()


@pytest.mark.skipif(CHROMIUM is None, reason="no browser is installed")
def test_a_browser_draws_the_form_of_the_recipe(folder: Path, tmp_path: Path):
    """The policy of the pages lets our modules run, and they find what they ask the server for."""
    with served(folder) as link:
        words = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={tmp_path}",
            "--virtual-time-budget=60000",
        ]
        done = subprocess.run(
            [str(CHROMIUM), *words, "--dump-dom", link], capture_output=True, text=True, timeout=180, check=True
        )
    assert 'id="section-adapter"' in done.stdout and 'aria-label="Options of Training"' in done.stdout, done.stdout[
        -3000:
    ]
