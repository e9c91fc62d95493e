"""Runs that meet the end of their disk, in processes of their own.

As a script it fills a file system in the middle of a checkpoint, inside a mount namespace: `unshare -rm python
full_disk.py`. Arguments: model, a directory to mount on, and how many bytes the run may still write, once for each trial.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import torch
from gym_torch_bench import Memory, make_run, metrics, same, state, train, weights

from gym_core import GymError
from gym_torch.checkpoints.checkpoint_folders import problem

SETTINGS = {"save_every": 2, "log_every": 1, "max_steps": 6, "eval_every": 4, "keep_last": 2}


def trial(model: Path, disk: Path, whole: Path, room: int) -> dict[str, object]:
    """Train with so much room, make room, train again; return what happened."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)], check=True)
    left = os.statvfs(disk)
    with (disk / "ballast").open("wb") as file:
        file.truncate(0)
        os.posix_fallocate(file.fileno(), 0, max(1, left.f_bavail * left.f_frsize - room))
    output, message = disk / "run", ""
    try:
        train(make_run(model, output, Memory(held_out=6), **SETTINGS))
    except (GymError, OSError) as error:
        message = str(error)
    kept = sorted((output / "checkpoints").glob("step-*"))
    sound = not any(problem(path) for path in kept)
    (disk / "ballast").unlink()
    train(make_run(model, output, Memory(held_out=6), **SETTINGS))
    alike = same(weights(output), weights(whole)) and same(state(output, 6)[0], state(whole, 6)[0])
    exact = alike and metrics(output) == metrics(whole)
    found = {"message": message, "kept": [path.name for path in kept], "sound": sound, "exact": exact}
    subprocess.run(["umount", "-l", str(disk)], check=True)
    return found


def limited(model: Path, output: Path, most: int) -> str:
    """Train where no file may grow beyond `most` bytes; return the message of the error, or nothing."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
    try:
        train(make_run(model, output, Memory(held_out=6), **SETTINGS))
    except GymError as error:
        return str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return ""


def main() -> None:
    """Run the trials and print one JSON object a line."""
    torch.set_num_threads(1)
    model, disk, whole, *rooms = sys.argv[1:]
    for room in rooms:
        print(json.dumps(trial(Path(model), Path(disk), Path(whole), int(room))))


if __name__ == "__main__":
    main()
