"""Processes that work on one run, forked from one that has imported everything, so that each costs a moment."""

from __future__ import annotations

import multiprocessing
import os
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore

from gym_core.cli import run
from gym_torch.loop import train_loop

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "gym_torch.trainer",
        "gym_torch.distributed.fsdp",
        "gym_torch.distributed.ranks",
        "gym_sft.objective",
        "gym_adapters.tuners.lora",
        "gym_core.cli.recipes",
        "gym_data.prepare",
        "gym_data.sources.readers",
        "pyarrow.parquet",
        "transformers.models.qwen3.modeling_qwen3",
    ]
)
fresh = count()


@dataclass
class Team:
    """Processes of one run."""

    members: list[Any]
    store: TCPStore
    said: list[Path]

    def codes(self, within: float = 60.0) -> list[int | None]:
        """Wait for all of them and return their exit codes."""
        ends = time.monotonic() + within
        for member in self.members:
            member.join(max(0.0, ends - time.monotonic()))
        codes = [member.exitcode for member in self.members]
        for member in self.members:
            member.kill()
        return codes

    def errors(self) -> str:
        return "".join(path.read_text() for path in self.said)


def member(rank: int, world: int, port: int, said: Path, arguments: list[str], hangs: int | None, gpus: bool) -> None:
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="localhost", MASTER_PORT=str(port)
    )
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    out = os.open(said, os.O_WRONLY | os.O_CREAT)
    os.dup2(out, 1)
    os.dup2(out, 2)
    if not gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if rank == hangs:
        train_loop.reseed = hang
    os._exit(run(["train", *arguments]))


def hang(seed: int, step: int, number: int) -> None:
    """Stand for whatever a process may get stuck in."""
    while step >= 3:
        time.sleep(1)


def start(world: int, *arguments: str, root: Path, hangs: int | None = None, gpus: bool = False) -> Team:
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    said = [root / f"said-{next(fresh)}" for _ in range(world)]
    for path in said:
        path.touch()
    members = [
        CONTEXT.Process(
            target=member, args=(rank, world, store.port, said[rank], list(arguments), hangs, gpus), daemon=True
        )
        for rank in range(world)
    ]
    for each in members:
        each.start()
    return Team(members, store, said)
