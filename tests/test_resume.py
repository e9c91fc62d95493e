"""Killed with SIGKILL and started again by the same command, a run ends with the weights of an uninterrupted one, bit for bit."""

from __future__ import annotations

import hashlib
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

RECIPE = """\
model: tiny
data: {{sources: [{{name: tiny-tasks, count: 96}}], validation: 8}}
algorithm: sft
{adapter}
train: {{epochs: 2, batch_size: 4, learning_rate: 1.0e-3, save_every: 3, log_every: 1, eval_every: 10, seed: 3}}
"""
TIMING = {"tokens_per_second", "seconds"}


def digest(folder: Path) -> str:
    weights = sorted(folder.glob("*.safetensors"))
    assert weights
    return hashlib.sha256(b"".join(path.read_bytes() for path in weights)).hexdigest()


def numbers(path: Path) -> list[dict]:
    return [{k: v for k, v in json.loads(line).items() if k not in TIMING} for line in path.read_text().splitlines()]


def last_step(output: Path) -> int:
    steps = [int(path.name.rpartition("-")[2]) for path in (output / "checkpoints").glob("step-*")]
    return max(steps, default=0)


@pytest.mark.parametrize("adapter", ["", "adapter: {name: lora, rank: 4, dropout: 0.1}"], ids=["full", "lora"])
def test_kill_and_continue_is_exact(gym, tmp_path, environment, adapter):
    (tmp_path / "r.yaml").write_text(RECIPE.format(adapter=adapter))
    whole = gym("train", "r.yaml", "output=whole")
    assert whole.returncode == 0, whole.stderr
    command = [sys.executable, "-m", "gym_core.cli", "train", "r.yaml", "output=killed"]
    output, chance, kills = tmp_path / "killed", random.Random(7), 0
    while kills < 3:
        process = subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        goal, patience = last_step(output) + 1, time.monotonic() + 120
        while last_step(output) < goal and process.poll() is None and time.monotonic() < patience:
            time.sleep(0.01)
        time.sleep(chance.random() * 0.3)
        process.send_signal(signal.SIGKILL)
        _, told = process.communicate()
        assert process.returncode in (-signal.SIGKILL, 0), told
        kills += 1
    done = gym("train", "r.yaml", "output=killed")
    assert done.returncode == 0, done.stderr
    assert digest(output / "model") == digest(tmp_path / "whole" / "model")
    assert numbers(output / "metrics.jsonl") == numbers(tmp_path / "whole" / "metrics.jsonl")


@pytest.mark.parametrize("harm", ["truncate", "flip", "remove"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(gym, tmp_path, environment, harm):
    (tmp_path / "r.yaml").write_text(RECIPE.format(adapter="adapter: {name: lora, rank: 4}"))
    whole = gym("train", "r.yaml", "output=whole")
    assert whole.returncode == 0, whole.stderr
    output = tmp_path / "hurt"
    command = [sys.executable, "-m", "gym_core.cli", "train", "r.yaml", "output=hurt"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while last_step(output) < 6 and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    process.wait()
    newest = output / "checkpoints" / f"step-{last_step(output):08d}"
    victim = newest / "optimizer.safetensors"
    content = bytearray(victim.read_bytes())
    if harm == "remove":
        victim.unlink()
    else:
        content[len(content) // 2] ^= 1
        victim.write_bytes(content[: len(content) // 2] if harm == "truncate" else content)
    done = gym("train", "r.yaml", "output=hurt")
    assert done.returncode == 0, done.stderr
    assert newest.name in done.stderr + done.stdout
    assert digest(output / "model") == digest(tmp_path / "whole" / "model")


def test_sigterm_leaves_a_checkpoint_and_says_so(gym, tmp_path, environment):
    (tmp_path / "r.yaml").write_text(RECIPE.format(adapter="").replace("save_every: 3", "save_every: 1000"))
    command = [sys.executable, "-m", "gym_core.cli", "train", "r.yaml", "output=out"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    metrics = tmp_path / "out" / "metrics.jsonl"
    while not (metrics.exists() and metrics.stat().st_size) and process.poll() is None:
        time.sleep(0.01)
    process.terminate()
    _, told = process.communicate(timeout=60)
    assert process.returncode == 143, told
    assert last_step(tmp_path / "out") > 0 and "same command" in told
    assert json.loads((tmp_path / "out" / "run.json").read_text())["status"] == "interrupted"
