"""Two processes that carry out a run together."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gym_torch_bench import metrics
from torch.distributed import TCPStore

from gym_core.ranks import Ranks
from gym_torch import DDP

Work = Callable[..., None]  #: given the processes, the number of this one, and what else there is


def in_two(root: Path, work: Work, *given: Any) -> None:
    """Have two processes do the same piece of work, a function of a module."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["gym_torch_two", "gym_torch.assembly", "gym_torch.distributed.fsdp"])
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    members = [
        context.Process(target=_member, args=(rank, store.port, root, work, *given), daemon=True) for rank in (0, 1)
    ]
    for member in members:
        member.start()
    for member in members:
        member.join(120)
    assert [member.exitcode for member in members] == [0, 0]


def losses(output: Path) -> list[float]:
    """Return those of each step of a run."""
    return [line["loss"] for line in metrics(output)]


def _member(rank: int, port: int, root: Path, work: Work, *given: Any) -> None:
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="localhost")
    os.environ.update(MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="True")
    ranks: Ranks = DDP().build(output=root)
    with ranks:
        work(ranks, rank, *given)
