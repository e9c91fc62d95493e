"""A server that the run starts: on loopback, with a key, and gone when the run is, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gym_core import GymError, RecipeError
from gym_torch import Transformers
from gym_torch.model.adapted import Full
from gym_torch.model.loading import load_frozen
from gym_torch.packing import PACKED
from gym_vllm import VLLM, Colocated
from gym_vllm.client import Client
from gym_vllm.launch import Server

HERE = Path(__file__).parent


@pytest.fixture
def vllm(tmp_path, monkeypatch) -> Path:
    """Put a command `vllm` on the path, which is the stand-in."""
    command = tmp_path / "bin" / "vllm"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\necho $$ > {tmp_path}/pid\nexec {sys.executable} {HERE}/gym_vllm_standin.py "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")
    return command


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 20
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive(pid)


def test_it_is_started_with_a_key_and_ended(vllm, model_path, tmp_path) -> None:
    server = Server(VLLM(startup=60), model_path, tmp_path / "vllm.log")
    url, key = server.start()
    assert url.startswith("http://127.0.0.1:") and len(key) > 30
    assert Client(url, key).get("/v1/models", "data", 0, "id") == "policy"
    with pytest.raises(GymError, match="status 401"):
        Client(url, "wrong").get("/v1/models")
    pid = int((tmp_path / "pid").read_text())
    assert key not in " ".join(server.command(1))
    server.stop()
    assert gone(pid)


def test_it_does_not_outlive_a_run_that_is_killed(vllm, model_path, tmp_path) -> None:
    code = (
        "import sys; from pathlib import Path; from gym_vllm import VLLM; from gym_vllm.launch import Server\n"
        f"Server(VLLM(startup=60), Path({str(model_path)!r}), Path({str(tmp_path)!r}) / 'vllm.log').start()\n"
        "print('ready', flush=True); sys.stdin.read()"
    )
    run = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None and run.stdout.readline() == "ready\n"
    pid = int((tmp_path / "pid").read_text())
    assert alive(pid)
    run.send_signal(signal.SIGKILL)
    run.wait()
    assert gone(pid)


def test_one_that_ends_at_once_says_why(vllm, model_path, tmp_path) -> None:
    vllm.write_text("#!/bin/sh\necho 'no CUDA device is there' >&2\nexit 3\n")
    with pytest.raises(GymError) as caught:
        Server(VLLM(startup=60), model_path, tmp_path / "vllm.log").start()
    assert "ended with status 3: no CUDA device is there" in str(caught.value)
    assert "vllm.log" in str(caught.value) and len(str(caught.value).splitlines()) <= 4


def test_one_that_never_answers_is_ended(vllm, model_path, tmp_path) -> None:
    vllm.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 100\n")
    with pytest.raises(GymError, match="is not ready after 1 s"):
        Server(VLLM(startup=1), model_path, tmp_path / "vllm.log").start()
    assert gone(int((tmp_path / "pid").read_text()))


def test_without_vllm(model_path, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GymError, match="pip install 'gym-vllm"):
        Server(VLLM(), model_path, tmp_path / "vllm.log").start()


def test_options_become_the_command_line(tmp_path) -> None:
    config = VLLM(dtype="bfloat16", gpu_memory_utilization=0.8, max_model_len=4096, tensor_parallel_size=2)
    command = Server(config, Path("/model"), tmp_path / "log").command(8123)
    assert command[:3] == ["vllm", "serve", "/model"]
    options = dict(zip(command[3::2], command[4::2], strict=True))
    assert options["--host"] == "127.0.0.1" and options["--port"] == "8123"
    assert options["--dtype"] == "bfloat16" and options["--gpu-memory-utilization"] == "0.8"
    assert options["--max-model-len"] == "4096" and options["--tensor-parallel-size"] == "2"
    assert options["--logprobs-mode"] == "processed_logprobs" and options["--generation-config"] == "vllm"


@pytest.mark.parametrize("engine", [VLLM, Colocated])
def test_routing_is_refused_before_anything_is_started(engine, tmp_path) -> None:
    with pytest.raises(RecipeError, match="which experts"):
        engine().build(adapted=None, tokenizer=None, path=tmp_path, output=tmp_path, ranks=None, routers=object())


@pytest.mark.parametrize("engine", [VLLM, Colocated])
def test_scaled_positions_are_refused_before_anything_is_started(engine, model_path, tmp_path) -> None:
    scaled = Transformers(path=str(model_path), rope_scaling={"type": "yarn", "factor": 2.0})
    adapted = Full(None, load_frozen(scaled, "fp32", PACKED).model)
    with pytest.raises(GymError, match="whose positions are not scaled") as caught:
        engine().build(adapted=adapted, tokenizer=None, path=model_path, output=tmp_path, ranks=None)
    assert caught.value.problems[0].key == "model.rope_scaling"
