"""Runs whose layers are compiled by a stand-in, which makes nothing and asks what the real one asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gym_torch_bench import make_run, train
from torch import nn

from gym_core.ranks import Ranks
from gym_core.record import RunRecord
from gym_torch.compiled import ahead_of_time, compiled_code
from gym_torch.compiled.layer_calls import SHORT, Alike
from gym_torch.kinds import TorchStrategy
from gym_torch.loop.changeover import RECORD


def other_code(patched: pytest.MonkeyPatch, folder: Path) -> None:
    """Have compiled layers compute a little else, as rounding would have it, and more visibly."""

    def make(groups: list[Alike], *_: object) -> list[nn.Module]:
        return [alike.layers[0] for alike in groups]

    def install(
        layers: list[nn.Module], _precision: str, _codes: list[int], _folder: Path, met: Any, *_: object
    ) -> None:
        assert met(SHORT)
        for layer in layers:
            layer.register_forward_hook(lambda _module, _inputs, output: output * 1.01)

    patched.setenv(compiled_code.FOLDER, str(folder))
    patched.setattr(ahead_of_time, "make", make)
    patched.setattr(ahead_of_time, "install", install)


def begun(output: Path, step: int) -> None:
    """Have a run be known that changes over after so many steps."""
    output.mkdir(parents=True)
    RunRecord(output / "run.json").update(**{RECORD: {"from_step": step}})


def member(ranks: Ranks, rank: int, strategy: TorchStrategy, model: Path, root: Path, step: int) -> None:
    """Be one of the processes of a run that is to change over after so many steps."""
    other_code(pytest.MonkeyPatch(), root / "compiled")
    begun(root / str(rank), step)
    run = make_run(model, root / str(rank), max_steps=3, accumulate=2, sections={"distributed": strategy})
    run.ranks = ranks
    train(run)
