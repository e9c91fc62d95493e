"""Killed with SIGKILL and started again by the same command, a run ends with the weights of an uninterrupted one, bit for bit."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gym_testkit import warm
from gym_testkit.caches import own_cache

RECIPE = """\
model: tiny
data: {{sources: [{{name: tiny-tasks, count: 96}}], validation: 8}}
algorithm: sft
{adapter}
train:
  {{epochs: 2, batch_size: 4, learning_rate: 1.0e-3, save_every: 3, log_every: 1, eval_every: 10, seed: 3,
    precision: fp32, plot: false}}
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


@pytest.mark.parametrize(
    "adapter",
    [
        pytest.param("", id="full", marks=pytest.mark.slow),
        pytest.param("adapter: {name: lora, rank: 4, dropout: 0.1}", id="lora"),
    ],
)
def test_kill_and_continue_is_exact(gym, start, tmp_path, adapter):
    (tmp_path / "r.yaml").write_text(RECIPE.format(adapter=adapter))
    whole = gym("train", "r.yaml", "output=whole")
    assert whole.returncode == 0, whole.stderr
    output, chance, kills, hit = tmp_path / "killed", random.Random(7), 0, 0
    while kills < 3:
        process = start("train", "r.yaml", "output=killed")
        goal, patience = last_step(output) + 1, time.monotonic() + 120
        while last_step(output) < goal and process.poll() is None and time.monotonic() < patience:
            time.sleep(0.01)
        time.sleep(chance.random() * 0.3)
        process.send_signal(signal.SIGKILL)
        _, told = process.communicate()
        assert process.returncode in (-signal.SIGKILL, 0), told
        kills += 1
        hit += process.returncode == -signal.SIGKILL
    assert hit, "it was never killed"
    done = gym("train", "r.yaml", "output=killed")
    assert done.returncode == 0, done.stderr
    assert digest(output / "model") == digest(tmp_path / "whole" / "model")
    assert numbers(output / "metrics.jsonl") == numbers(tmp_path / "whole" / "metrics.jsonl")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with a finished run, `whole`, and the same killed when it had checkpoints, `hurt`."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "r.yaml").write_text(RECIPE.format(adapter="adapter: {name: lora, rank: 4}"))
    environment = {**os.environ, "GYM_CACHE": own_cache(folder / "cache")}
    train = ["-m", "gym_core.cli", "train", "r.yaml"]
    whole = warm.run(*train, "output=whole", cwd=folder, env=environment)
    assert whole.returncode == 0, whole.stderr
    process = warm.start(*train, "output=hurt", cwd=folder, env=environment)
    while last_step(folder / "hurt") < 6 and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    process.wait()
    return folder


@pytest.mark.parametrize("harm", ["truncate", "flip", "remove"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(gym, tmp_path, runs, harm):
    (tmp_path / "r.yaml").write_text((runs / "r.yaml").read_text())
    output = shutil.copytree(runs / "hurt", tmp_path / "hurt")
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
    assert digest(output / "model") == digest(runs / "whole" / "model")


def test_sigterm_leaves_a_checkpoint_and_says_so(start, tmp_path):
    (tmp_path / "r.yaml").write_text(RECIPE.format(adapter="").replace("save_every: 3", "save_every: 1000"))
    process = start("train", "r.yaml", "output=out")
    metrics = tmp_path / "out" / "metrics.jsonl"
    while not (metrics.exists() and metrics.stat().st_size) and process.poll() is None:
        time.sleep(0.01)
    process.terminate()
    _, told = process.communicate(timeout=60)
    assert process.returncode == 143, told
    assert last_step(tmp_path / "out") > 0 and "same command" in told
    assert json.loads((tmp_path / "out" / "run.json").read_text())["status"] == "interrupted"


RUN_IN_READ_ONLY = """\
import subprocess, sys
subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", sys.argv[1]], check=True)
from gym_core.cli import run
sys.exit(run(["train", "r.yaml", f"output={sys.argv[1]}/out"]))
"""


def namespaces() -> bool:
    """Whether this machine lets us mount a file system of our own."""
    if not shutil.which("unshare"):
        return False
    command = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.skipif(not namespaces(), reason="no file system can be mounted here")
def test_a_read_only_output_is_an_error_before_anything_is_loaded(tmp_path, environment):
    (tmp_path / "r.yaml").write_text(RECIPE.format(adapter=""))
    (tmp_path / "disk").mkdir()
    command = ["unshare", "-rm", sys.executable, "-c", RUN_IN_READ_ONLY, str(tmp_path / "disk")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert "Read-only file system" in done.stderr and len(done.stderr.strip().splitlines()) <= 4


def test_a_lock_that_a_dead_process_left_holds_nobody_up(gym, tmp_path):
    (tmp_path / "r.yaml").write_text(RECIPE.format(adapter="adapter: {name: lora, rank: 4}"))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".lock").write_text('{"pid": 1, "started": "2001-01-01T00:00:00Z"}')
    done = gym("train", "r.yaml", "output=out", "train.max_steps=2")
    assert done.returncode == 0, done.stderr


def test_a_run_goes_on_without_the_step_that_is_named(gym, tmp_path):
    """`train.skip_steps` is no other run: it may be set when the command is given again."""
    (tmp_path / "r.yaml").write_text(RECIPE.format(adapter="adapter: {name: lora, rank: 4}"))
    settings = ["train.max_steps=3", "train.learning_rate=1e38", "train.save_every=1", "train.warmup=0"]
    stopped = gym("train", "r.yaml", "output=out", *settings)
    assert stopped.returncode == 1 and len(stopped.stderr.partition("error: ")[2].splitlines()) <= 4
    assert "are not finite" in stopped.stderr and "train.skip_steps=[1]" in stopped.stderr
    done = gym("train", "r.yaml", "output=out", *settings, "train.skip_steps=[1,2,3]")
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["training"]["skipped"] == [1, 2, 3] and record["resumed"] == 1
