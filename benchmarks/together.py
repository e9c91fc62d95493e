"""Many users trained together over one base, against the same users one after another; their adapters, and their memory.

Rates are of whole optimizer steps of a random Qwen3 of 30M parameters, rank 8 beside all linear layers, AdamW, fp32, sequences of
32 tokens: the engine of gym-personalization against the loop of `gym train`, both warm, with the base loaded in both. Seconds are
of the processor rather than of the clock, so that what else runs here counts less. Then four users of the packaged model, 100
steps each, against their own runs; and many users (4,096; `--quick`: 256) through room for 32, killed half-way. A part runs by
itself with its name: `--rates`, `--adapters`, `--many`.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch
from optim import large_shape
from report import Measure, Report, main
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from gym_core import Recipe, load_recipe
from gym_core.execution import execute
from gym_personalization.training_engine import Engine
from gym_personalization.user_scheduler import Waiting, train_all
from gym_personalization.variants import STATE
from gym_testkit.tiny import write_model
from gym_torch.loop import train_loop

TOKENS = 32  #: of a sequence
ADAPTER = "model/adapter_model.safetensors"
ROOM = 32  #: users in a step, of many

Part = Callable[[Report, Path, bool], None]


def measured(*parts: Part) -> Measure:
    """Return what measures these parts."""

    def measure(report: Report, quick: bool) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            for part in parts:
                part(report, Path(scratch), quick)

    return measure


def rates(report: Report, root: Path, quick: bool) -> None:
    """Take the time of a step of 64 users at one sequence each, and of 8 at 16 each."""
    model = large(root / "30M")
    for users, sequences, least in ((64, 1, 2.2), (8, 16, 0.95)):
        steps = 3 if quick else 6
        made = Users(root / f"x{sequences}", model, users, {"algorithm": "pretrain"}, text(64 * TOKENS))
        made.train = {"batch_size": sequences, "max_steps": steps + 2, "log_every": 1000, "save_every": 1000}
        engine = Engine(made.recipe(0), made.root, users=users)
        for user in range(users):
            engine.join(str(user), made.recipe(user), made.output(user))
        together = []
        for _ in range(steps + 1):
            began = time.process_time()
            errors = engine.step()
            together.append(time.process_time() - began)
            assert not errors, errors
        del engine
        with timed() as alone:
            execute(made.recipe(0, "alone"))
        own, all_of_them = median(alone[2:]), median(together[1:])
        ratio = users * own / all_of_them
        per_token = {"alone": own / sequences, "together": all_of_them / users / sequences}
        report.figures[f"{users} users, {sequences} sequences each"] = {
            "threads": torch.get_num_threads(),
            **{f"us_per_token_{name}": 1e6 * seconds / TOKENS for name, seconds in per_token.items()},
            "ratio": ratio,
        }
        report.check(f"rate of {users} users at {sequences} sequences, over one after another", ratio, at_least=least)


def adapters(report: Report, root: Path, quick: bool) -> None:
    """Compare what four users of the packaged model get together with what each gets alone; all steps, quick or not."""
    steps = 100
    made = Users(root / "close", Path("tiny"), 4, {"algorithm": "sft"}, None)
    made.train = {"batch_size": 4, "max_steps": steps, "learning_rate": 1e-3, "log_every": 1000, "save_every": 1000}
    engine = Engine(made.recipe(0), made.root, users=4)
    for found in train_all(engine, [made.waiting(user) for user in range(4)]):
        assert found.error is None, found.error
    furthest = 0.0
    for user in range(4):
        execute(made.recipe(user, "alone"))
        one, other = (load_file(folder / ADAPTER) for folder in (made.output(user), made.root / f"alone-{user}"))
        furthest = max([furthest, *(float((one[name] - other[name]).abs().max()) for name in one)])
    report.figures["adapters"] = {"users": 4, "steps": steps, "largest_difference": furthest}
    report.check(f"largest difference of an adapter after {steps} steps", furthest, at_most=1e-5)


def many(report: Report, root: Path, quick: bool) -> None:
    """Train many users in a process of its own that is killed half-way, and in one that goes on; memory is that of the room."""
    few, users = (64, 256) if quick else (512, 4096)
    figures: dict[str, Any] = {}
    for count in (few, users):
        folder = root / f"many-{count}"
        began = time.monotonic()
        if count == users:
            process = subprocess.Popen([*crowd_of(count, folder)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            while len(those_with(folder, ADAPTER)) < count // 2 and process.poll() is None:
                time.sleep(0.2)
            process.send_signal(signal.SIGKILL)
            process.wait()
            over, idle = (those_with(folder, file) for file in (ADAPTER, STATE))
            figures["killed"] = {"finished": len(over), "states_on_disk": len(idle)}
            report.check("users with neither a variant nor a state when killed", users - len(over | idle), at_most=0)
            report.check("states on the disk when killed, of those in the step", len(idle) / ROOM, at_least=3)
        told = json.loads(subprocess.check_output(crowd_of(count, folder), stderr=subprocess.DEVNULL))
        figures[f"{count} users"] = {**told, "seconds": round(time.monotonic() - began, 1)}
    peaks = [figures[f"{count} users"]["peak_bytes"] for count in (few, users)]
    report.figures["many"] = figures
    name = f"peak memory of {users:,} users over that of {few}, room for {ROOM} in both"
    report.check(name, round(peaks[1] / peaks[0], 3), at_most=1.1)
    report.check("users without a variant", users - figures[f"{users} users"]["variants"], at_most=0)


def crowd_of(count: int, folder: Path) -> list[str]:
    """Return the command that trains so many users in a folder."""
    return [sys.executable, __file__, "--crowd", str(count), str(folder)]


def crowd(count: int, folder: Path) -> None:
    """Train users of a small random model, and say how many have a variant and what it took."""
    model = folder / "model"
    if not model.exists():
        write_model(model)
    made = Users(folder / "all", model, count, {"algorithm": "pretrain"}, text(4 * TOKENS))
    made.train = {"batch_size": 2, "max_steps": 4, "log_every": 1000, "save_every": 1000}
    engine = Engine(made.recipe(0), made.root, users=ROOM)
    found = list(train_all(engine, map(made.waiting, range(count)), turn=2))
    assert not [each.error for each in found if each.error]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(
        json.dumps(
            {
                "variants": len(those_with(folder, ADAPTER)),
                "repeated": sum(each.repeated for each in found),
                "peak_bytes": peak,
            }
        )
    )


def those_with(folder: Path, file: str) -> set[str]:
    """Return the users in whose folder a file is."""
    return {path.name for path in folder.glob("all/users/*") if (path / file).is_file()}


class Users:
    """So many users with rows and seeds of their own."""

    def __init__(
        self, root: Path, model: Path, count: int, recipe: dict[str, Any], words: Callable[[int], str] | None
    ) -> None:
        """Write the rows: text by number of the user, or tasks of the packaged model."""
        self.root, self.model, self.rest = root, model, recipe
        self.train: dict[str, Any] = {}
        self.words = words
        (root / "rows").mkdir(parents=True, exist_ok=True)

    def output(self, user: int) -> Path:
        """Return the directory of a user's run."""
        return self.root / "users" / str(user)

    def source(self, user: int) -> Any:
        """Return where the rows of a user come from."""
        if self.words is None:
            return {"name": "tiny-tasks", "count": 24, "seed": user}
        file = self.root / "rows" / f"{user}.jsonl"
        if not file.exists():
            file.write_text(json.dumps({"text": self.words(user)}) + "\n", encoding="utf-8")
        return str(file)

    def recipe(self, user: int, alone: str = "") -> Recipe:
        """Return the recipe of a user, with all users or alone."""
        output = self.root / f"{alone}-{user}" if alone else self.output(user)
        data = {"sources": [self.source(user)], "processes": 1, **({} if self.words is None else {"cutoff": TOKENS})}
        train = {"precision": "fp32", "seed": user, "plot": False, **self.train}
        adapter = {"name": "lora", "rank": 8}
        shared = {"model": {"path": str(self.model), "compile": False}, "adapter": adapter, **self.rest}
        return load_recipe({**shared, "data": data, "train": train, "output": str(output)})

    def waiting(self, user: int) -> Waiting:
        """Return a user who is to be trained."""
        return Waiting(str(user), self.output(user), lambda: self.recipe(user))


def text(letters: int) -> Callable[[int], str]:
    """Return what writes so many letters, others for each user."""
    return lambda user: "".join(random.Random(user).choices("abcdefgh ", k=letters))


def large(folder: Path) -> Path:
    """Write a random model of 30M parameters that reads bytes."""
    write_model(folder)
    for file in (folder / "config.json", folder / "model.safetensors"):
        file.unlink()
    AutoModelForCausalLM.from_config(large_shape()).save_pretrained(folder)
    return folder


@contextmanager
def timed() -> Iterator[list[float]]:
    """Take the seconds of each optimizer step of the loop of `gym train`."""
    seconds: list[float] = []
    step = train_loop.optimizer_step

    def taken(*given: Any) -> bool:
        began = time.process_time()
        done = step(*given)
        seconds.append(time.process_time() - began)
        return done

    train_loop.optimizer_step = taken
    try:
        yield seconds
    finally:
        train_loop.optimizer_step = step


if __name__ == "__main__":
    os.environ.setdefault("GYM_CACHE", tempfile.mkdtemp(prefix="gym-together-"))
    if sys.argv[1:2] == ["--crowd"]:
        crowd(int(sys.argv[2]), Path(sys.argv[3]))
    else:
        parts = {"rates": rates, "adapters": adapters, "many": many}
        main(measured(*parts.values()), __doc__ or "", **{name: measured(part) for name, part in parts.items()})
