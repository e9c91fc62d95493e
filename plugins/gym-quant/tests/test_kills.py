"""A process that quantizes is killed: nothing stands under the final name but all of it, and the same command goes on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import torch

from gym_core import Artifact, execute, load_recipe
from gym_core.record import RunRecord
from gym_manage.recorded import recorded
from gym_manage.reopened import reopened
from gym_quant import RTN
from gym_testkit.bench import Bench, fingerprint

torch.set_num_threads(1)  # a process that is forked has no other threads

MOMENTS = (0.0, 0.3, 0.6, 0.9)  #: shares of the time that quantizing takes, from when it begins to write


def killed(work: Callable[[], object], folder: Path, seconds: float) -> None:
    """Do some work in a process of its own, and kill it so many seconds after there is something new in the folder."""
    before, child = os.listdir(folder), os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    while os.listdir(folder) == before:
        time.sleep(0.001)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def hidden(folder: Path) -> list[str]:
    """Return what is half written in a folder, and what is merged for a while."""
    return [path.name for path in folder.iterdir() if path.name.startswith(".") and path.name != ".lock"]


def test_killed_at_any_moment(bench: Bench, tmp_path: Path) -> None:
    output = tmp_path / "run"
    execute(load_recipe(bench.recipe("sft", max_steps=1) | {"adapter": "lora", "output": str(output)}))
    found = recorded(output)
    run, _ = reopened(found.recipe, output)
    quantizer = RTN(bits=8, holdout_samples=4, calibration_length=16).build()

    def quantize(into: Path) -> Artifact:
        return quantizer.quantize(run, found.trained, into)

    whole = fingerprint(quantize(output / "first").path, "model.safetensors")
    began, before = time.monotonic(), fingerprint(found.trained.path)
    assert fingerprint(quantize(output / "second").path, "model.safetensors") == whole
    seconds, left = time.monotonic() - began, set[str]()
    into = output / "quantized"
    for moment in MOMENTS:
        if into.exists():  # it was done before it was killed
            break
        killed(lambda: quantize(into), output, moment * seconds)
        left |= set(hidden(output))
        assert not into.exists() or fingerprint(into, "model.safetensors") == whole, "half of it has the final name"
        assert len(hidden(output)) <= 4, "what earlier processes left stays"  # of two folders, each with its lock
    assert left, "no kill came in the middle"
    assert fingerprint(quantize(into).path, "model.safetensors") == whole
    assert not hidden(output) and fingerprint(found.trained.path) == before
    assert RunRecord(output / "run.json").read()["status"] == "finished"
