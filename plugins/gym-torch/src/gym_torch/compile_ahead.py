"""Compiles the layers of a run in a background process, which writes the code to the folder that the run loads it from.

The process builds the model from the recipe in `run.json`. It ends with the run, when its standard input, a pipe of the run, is
closed; a run that asked for compiled layers and ends before they are ready tells it to continue.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any, Self

import psutil  # type: ignore[import-untyped]
import torch
from torch import nn

from gym_core import PluginError, Run, load_recipe
from gym_core.record import Unwritten
from gym_torch.compiled import compiled_code
from gym_torch.compiled.compiling import Layers, Trial
from gym_torch.compiled.layer_calls import ROWS
from gym_torch.compiled.layer_code import Everywhere
from gym_torch.config import torch_algorithm
from gym_torch.loop.changeover import RECORD, Ahead, Changeover
from gym_torch.memory.gradient_checkpointing import recomputable, recompute_layers
from gym_torch.model.adapted import adapt
from gym_torch.model.dropout import disable_dropout
from gym_torch.policy import Policy

LONG = 900.0  #: seconds of training from which on `auto` tries whether compiled layers are faster
LATER = 5  #: added to the niceness of the process: the run comes first
ROOM = 2.0  #: times the weights of the model that must be free, for the process loads them once more
GO_ON = "go on"  #: tells the process not to end with the run
TRIAL = "trial: "  #: begins the line in which the process says what it found


def changeover_of(
    run: Run, layers: Layers, asked: bool | str, tokens: int, alone: bool = True, everywhere: Everywhere = list
) -> Changeover:
    """Return the changeover of a run of `tokens` tokens to compiled layers, or none.

    `alone` says whether one process trains; `everywhere` joins the lists of all of them. Layers on an accelerator, those of
    several processes, and those of a model that the memory has no room for twice, are tried before the first step.
    """
    compiled = partial(layers.compile, everywhere)
    told: Any = run.record.read().get(RECORD) if run.resuming else None
    if told is None:
        told = run.ranks.agree(lambda: {"from_step": None} if wanted(layers, asked, tokens) else False)
        run.record.update(**{RECORD: told})
    if told is False:
        return Changeover(run.record, compiled, None, asked, done=True)
    _ = layers.what  # which names them as they are now: a strategy may wrap them
    if told["from_step"] is not None:
        return Changeover(run.record, compiled, None, asked, told["from_step"])
    trial = run.ranks.agree(lambda: (compiled_code.known(layers.what) or {}).get("trial"))
    if trial is None and not (alone and run.recipe.model is not None and has_room(layers.model)):
        trial = run.ranks.agree(lambda: asdict(layers.tried()))
    ahead = BackgroundCompilation(run, layers) if trial is None else KnownTrial(Trial(**trial))
    return Changeover(run.record, compiled, ahead, asked)


def wanted(layers: Layers, asked: bool | str, tokens: int) -> bool:
    """Whether compiled layers are asked for, or may be faster for a run of this length, estimated from one layer."""
    count = len(recomputable(layers.model))
    if not count or not asked:
        return False
    return asked is True or layers.eager_ms() / 1000 * count * tokens / ROWS[0][0] >= LONG


def has_room(model: nn.Module, free: int | None = None) -> bool:
    """Whether memory has room for a second copy of a model on the CPU; `free` bytes, by default what is available."""
    tensors = [*model.parameters(), *model.buffers()]
    held = sum(tensor.nbytes for tensor in tensors)
    on_cpu = all(tensor.device.type == "cpu" for tensor in tensors)
    return on_cpu and (psutil.virtual_memory().available if free is None else free) >= ROOM * held


class KnownTrial(Ahead):
    """A trial that an earlier run finished."""

    def __init__(self, trial: Trial) -> None:
        """Take it."""
        self._trial = trial

    def found(self) -> Trial:
        """Return it."""
        return self._trial

    def leave(self) -> None:
        """Do nothing."""

    def __exit__(self, *_: object) -> None:
        """Do nothing."""


class BackgroundCompilation(Ahead):
    """The background process that compiles."""

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
        self._left, self._what = False, layers.what
        self._tell(json.dumps(told))

    def found(self) -> Trial | None:
        """Return its trial; None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        self._said.seek(0)
        trial = trial_printed(code, self._said.read().decode(errors="replace"))
        if not trial.error and compiled_code.known(self._what) is None:
            return replace(trial, error="the process that compiles them built other layers than the run has")
        return trial

    def leave(self) -> None:
        """Tell it to continue after the end of the run."""
        self._left = True
        self._tell(GO_ON)

    def __enter__(self) -> Self:
        """Compile in the block."""
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        """End it and its children, unless `leave` was called."""
        if not self._left:
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._open.close()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()


def trial_printed(code: int, text: str) -> Trial:
    """Return the trial in the output of a process with its exit code; libraries may print before and after it."""
    lines = text.splitlines()
    trial = next((line for line in reversed(lines) if line.startswith(TRIAL)), None)
    if code or trial is None:
        return Trial(0.0, 0.0, 0.0, f"the process that compiles them ended with {code}: {' '.join(lines[-1:])[:200]}")
    return Trial(**json.loads(trial.removeprefix(TRIAL)))


def main() -> None:
    """Compile the layers that the first line of standard input describes, and print the trial."""
    told: dict[str, Any] = json.loads(sys.stdin.readline())
    Thread(target=_end_with_parent, daemon=True).start()
    if hasattr(os, "sched_setscheduler"):  # where the run has a priority above all others, this has not
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.nice(LATER)
    torch.set_num_threads(told["threads"])
    found = layers_of(Path(told["record"]), told["recomputed"]).tried()
    sys.stdout.write(f"\n{TRIAL}{json.dumps(asdict(found))}\n")


def layers_of(record: Path, recomputed: bool | int | str) -> Layers:
    """Build the model of the run with this record, and return its layers."""
    told = Unwritten(record)
    recipe = load_recipe(told.read()["recipe"])
    if recipe.model is None:
        raise PluginError("names no model", where=str(record), key="model")
    loaded = recipe.model.build(run=Run(recipe, record.parent, told, resuming=True))
    adapted = adapt(loaded.model, recipe)
    if torch_algorithm(recipe).disable_dropout:
        disable_dropout(adapted.model)
    recompute_layers(adapted.model, recomputed)
    precision = loaded.precision
    Policy(adapted.model, precision).train()
    return Layers(adapted.model, loaded.layout, precision, recomputed)


def _end_with_parent() -> None:
    if sys.stdin.read().strip() != GO_ON:
        os.killpg(0, signal.SIGKILL)  # compilers too


if __name__ == "__main__":
    main()
