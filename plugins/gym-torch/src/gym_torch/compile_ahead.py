"""Compiles the layers of a run in a process of its own, which leaves their code in the folder that the run looks in.

The process builds the model as the run does, from the recipe in `run.json`, and runs one layer of it. It ends with the run: its
standard input is a pipe that nobody else holds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any, Self

import torch

from gym_core import PluginError, Run, load_recipe
from gym_core.record import Unwritten
from gym_torch.config import torch_algorithm
from gym_torch.loop.changeover import RECORD, Ahead, Changeover
from gym_torch.model import compiled_code
from gym_torch.model.adapted import adapt
from gym_torch.model.compiling import Layers, Trial
from gym_torch.model.dropout import disable_dropout
from gym_torch.model.gradient_checkpointing import recomputable, recompute_layers
from gym_torch.policy import Policy

LONG = 900.0  #: seconds of training from which on `auto` tries whether compiled layers are faster
LATER = 5  #: added to the niceness of the process: the run comes first


def changeover_of(run: Run, layers: Layers, asked: bool | str, tokens: int, alone: bool = True) -> Changeover:
    """Return what compiles the layers of a run over so many tokens, or leaves them as they are.

    `alone` says whether one process trains. Layers on an accelerator, and those of several processes, are tried before the
    first step: beside them there is no room.
    """
    told: Any = run.record.read().get(RECORD) if run.resuming else None
    if told is None:
        told = run.ranks.agree(lambda: {"from_step": None} if wanted(layers, asked, tokens) else False)
        run.record.update(**{RECORD: told})
    if told is False:
        return Changeover(run.record, layers.compile, None, asked, done=True)
    if told["from_step"] is not None:
        return Changeover(run.record, layers.compile, None, asked, told["from_step"])
    note = run.ranks.agree(lambda: compiled_code.known(layers.what))
    if note is None and (not alone or layers.model.device.type != "cpu" or run.recipe.model is None):
        note = run.ranks.agree(lambda: asdict(layers.tried()))
    ahead = Beside(run, layers) if note is None else Known(Trial(**note))
    return Changeover(run.record, layers.compile, ahead, asked)


def wanted(layers: Layers, asked: bool | str, tokens: int) -> bool:
    """Whether somebody asks for compiled layers, or they may pay: how long the run will take is judged by one layer."""
    count = len(recomputable(layers.model))
    if not count or not asked:
        return False
    return asked is True or layers.eager_ms() / 1000 * count * tokens / layers.tokens >= LONG


class Known(Ahead):
    """What was found before the run."""

    def __init__(self, trial: Trial) -> None:
        """Take it."""
        self._trial = trial

    def found(self, seconds: float = 0.0) -> Trial:
        """Return it."""
        return self._trial

    def __exit__(self, *_: object) -> None:
        """Do nothing."""


class Beside(Ahead):
    """The process that compiles."""

    def __init__(self, run: Run, layers: Layers) -> None:
        """Start it."""
        told = {"record": str(run.record.path), "recomputed": layers.recomputed, "threads": torch.get_num_threads()}
        compiled_code.use()  # of which the environment tells the process
        self._open = ExitStack()
        self._said = self._open.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        command = [sys.executable, "-m", __name__]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=self._said, stderr=subprocess.STDOUT, start_new_session=True
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(told).encode() + b"\n")
        self._process.stdin.flush()

    def found(self, seconds: float = 0.0) -> Trial | None:
        """Return what it found; None while it works, after waiting so many seconds at most."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").splitlines()
        if code or not lines:
            return Trial(
                0.0, 0.0, 0.0, f"the process that compiles them ended with {code}: {' '.join(lines[-1:])[:200]}"
            )
        return Trial(**json.loads(lines[-1]))

    def __enter__(self) -> Self:
        """Compile in the block."""
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()  # which ends it and what it started
        self._process.wait()
        self._open.close()


def main() -> None:
    """Compile what the first line of standard input tells of, and print the trial."""
    told: dict[str, Any] = json.loads(sys.stdin.readline())
    Thread(target=_end_with_parent, daemon=True).start()
    os.nice(LATER)
    torch.set_num_threads(told["threads"])
    found = layers_of(Path(told["record"]), told["recomputed"]).tried()
    sys.stdout.write(f"\n{json.dumps(asdict(found))}\n")


def layers_of(record: Path, recomputed: bool | int | str) -> Layers:
    """Return the layers of the model that the run of a record trains, built anew."""
    told = Unwritten(record)
    recipe = load_recipe(told.read()["recipe"])
    if recipe.model is None:
        raise PluginError("names no model", where=str(record), key="model")
    loaded = recipe.model.build(run=Run(recipe, record.parent, told, resuming=True))
    adapted = adapt(loaded.model, recipe)
    if torch_algorithm(recipe).disable_dropout:
        disable_dropout(adapted.model)
    recompute_layers(adapted.model, recomputed)
    bf16 = loaded.precision == "bf16"
    Policy(adapted.model, bf16).train()
    return Layers(adapted.model, loaded.layout, bf16, recomputed)


def _end_with_parent() -> None:
    sys.stdin.read()
    os.killpg(0, 9)  # compilers too


if __name__ == "__main__":
    main()
