"""`gym api` as a process: what it says, whom it lets ask, and how it ends."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import pytest


def start(environment: dict[str, str], *words: str) -> tuple[subprocess.Popen[str], int, str]:
    """Return a process that serves, its port, and what it said until then."""
    command = [sys.executable, "-m", "gym_core.cli", "api", "demo", "engine=parrot", "port=0", *words]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    told = ""
    for line in process.stderr:
        told += line
        if found := re.search(r"http://[^ ]*?:(\d+)/v1", line):
            return process, int(found[1]), told
    raise AssertionError(told)


def ask(port: int, text: str, token: str = "", **fields) -> list[dict]:
    """Return the chunks of a streamed reply."""
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "stream": True,
        **fields,
    }
    headers = {"content-type": "application/json", "authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=20) as reply:
        lines = [line.decode().strip().removeprefix("data: ") for line in reply if line.strip()]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def said(chunks: list[dict]) -> str:
    return "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"])


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_when_replies_are_finished(environment, stop):
    process, port, told = start(environment, "engine.pause=0.1")
    assert "serving demo on http://127.0.0.1:" in told and "token" not in told
    text, found = " ".join("abcdefgh"), []
    client = threading.Thread(target=lambda: found.append(said(ask(port, text))))
    client.start()
    with socket.create_connection(("127.0.0.1", port)) as waits:
        while b"gym_engine_running 1.0" not in urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read():
            pass
        process.send_signal(stop)
        client.join(20)
        assert found == [text] and process.wait(20) == 0
        assert waits.recv(1) == b""
    assert process.stderr.read() == ""


def test_elsewhere_a_token_is_shown_once_and_needed(environment):
    process, port, told = start(environment, "--host", "0.0.0.0")
    try:
        token = re.search(r"token, shown this once: (\S{30,})", told)[1]
        assert said(ask(port, "a b", token)) == "a b"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            ask(port, "a b")
    finally:
        process.terminate()
        assert process.wait(20) == 0
    assert token not in process.stderr.read()


def test_a_tenant_that_is_not_there_is_said_at_the_start(environment):
    command = [sys.executable, "-m", "gym_core.cli", "api", "demo", "engine=parrot", "port=0", "tenant=carol"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "no adapter or variant `carol`" in done.stderr and "bob" in done.stderr


def test_an_address_that_is_taken_is_said_before_a_model_is_loaded(environment):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = [
            sys.executable,
            "-m",
            "gym_core.cli",
            "api",
            "demo",
            "engine=parrot",
            f"port={taken.getsockname()[1]}",
        ]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "cannot listen there" in done.stderr and len(done.stderr.splitlines()) <= 4
