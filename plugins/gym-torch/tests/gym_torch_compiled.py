"""Two processes of a run whose layers are compiled by a stand-in, which makes nothing and asks what the real one asks."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from gym_torch_bench import make_run, metrics, train
from torch import nn
from torch.distributed import TCPStore

from gym_core.record import RunRecord
from gym_torch import DDP, FSDP
from gym_torch.compiled import ahead_of_time, compiled_code
from gym_torch.compiled.layer_calls import SHORT, Alike
from gym_torch.loop.changeover import RECORD

STRATEGIES = {"ddp": DDP, "fsdp": FSDP}


def other_code(patched: pytest.MonkeyPatch, folder: Path) -> None:
    """Have compiled layers compute a little else, as rounding would have it, and more visibly."""

    def make(groups: list[Alike], *_: object) -> list[nn.Module]:
        return [alike.layers[0] for alike in groups]

    def install(layers: list[nn.Module], _bf16: bool, _codes: list[int], _folder: Path, met: Any, *_: object) -> None:
        assert met(SHORT)
        for layer in layers:
            layer.register_forward_hook(lambda _module, _inputs, output: output * 1.01)

    patched.setenv(compiled_code.FOLDER, str(folder))
    patched.setattr(ahead_of_time, "make", make)
    patched.setattr(ahead_of_time, "install", install)


def in_two(strategy: str, model: Path, root: Path, step: int) -> list[float]:
    """Return the losses of a run of two processes that is to change over after so many steps."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["gym_torch_compiled", "gym_torch.assembly", "gym_torch.distributed.fsdp"])
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    members = [
        context.Process(target=_member, args=(rank, store.port, strategy, model, root, step), daemon=True)
        for rank in (0, 1)
    ]
    for member in members:
        member.start()
    for member in members:
        member.join(120)
    assert [member.exitcode for member in members] == [0, 0]
    return losses(root / "0")


def losses(output: Path) -> list[float]:
    """Return those of each step."""
    return [line["loss"] for line in metrics(output)]


def begun(output: Path, step: int) -> None:
    """Have a run be known that changes over after so many steps."""
    output.mkdir(parents=True)
    RunRecord(output / "run.json").update(**{RECORD: {"from_step": step}})


def _member(rank: int, port: int, strategy: str, model: Path, root: Path, step: int) -> None:
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="localhost")
    os.environ.update(MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="True")
    other_code(pytest.MonkeyPatch(), root / "compiled")
    begun(root / str(rank), step)
    with STRATEGIES[strategy]().build(output=root) as ranks:
        run = make_run(
            model, root / str(rank), max_steps=3, accumulate=2, sections={"distributed": STRATEGIES[strategy]()}
        )
        run.ranks = ranks
        train(run)
