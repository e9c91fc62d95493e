"""The processes of a run that torchrun started: rank, process group, and agreement through the key-value store.

Everything said here goes through torchrun's key-value store as JSON; tensors go through the process group.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

import torch
import torch.distributed as dist

from gym_core import GymError, Interrupted
from gym_core.cli import report
from gym_core.ranks import Ranks
from gym_torch.distributed.watchdog import TOLD, Watch
from gym_torch.kernels import precision_probe

if TYPE_CHECKING:
    from gym_torch.distributed.strategies import DDP

T = TypeVar("T")
LINGER = 5.0  #: seconds for which a process that fails leaves the others the time to say why
MARGIN = 60.0  #: seconds after `timeout` at which an exchange of tensors gives up by itself


class TorchrunRanks(Ranks):
    """One of several processes."""

    def __init__(self, config: DDP, output: Path) -> None:
        """Open the store and the process group: gloo on a CPU, NCCL on a GPU.

        Raises GymError when the environment does not say where, or nobody is there within `config.timeout` seconds.
        """
        missing = [name for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
        if missing:
            raise GymError(f"WORLD_SIZE is set and {missing[0]} is not", where="environment", fix="start with torchrun")
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.main = self.rank == 0
        self._agreed, self._entered, self._failed = 0, 0, False
        device = precision_probe.device()
        if device.type != "cpu":
            local, there = int(os.environ["LOCAL_RANK"]), torch.accelerator.device_count()
            if local >= there:
                why = f"process {local + 1} of this machine finds no device: it has {there}"
                raise GymError(why, key="distributed.processes", fix=f"start {there} (--nproc {there})")
            torch.accelerator.set_device_index(local)
        try:
            self._store = _store(self.rank, self.world, config.timeout)
            dist.init_process_group(
                dist.get_default_backend_for_device(device),
                store=dist.PrefixStore("group", self._store),
                rank=self.rank,
                world_size=self.world,
                timeout=timedelta(seconds=config.timeout + MARGIN),
            )
        except (dist.DistError, RuntimeError) as error:
            raise GymError(
                f"the {self.world} processes did not meet within {config.timeout:g} s: {str(error).splitlines()[0][:200]}",
                where=f"rank {self.rank}",
                fix="check that all were started, with the same MASTER_ADDR and MASTER_PORT",
            ) from error
        self.watch = Watch(
            _store(self.rank, self.world, config.timeout, again=True), self.rank, self.world, config, output
        )
        self.watch.start()

    def agree(self, work: Callable[[], T]) -> T:
        """Have the main process do the work and all of them know what came of it, however long it takes."""
        self.at("")
        self._agreed += 1
        key = f"agreed/{self._agreed}"
        if self.main:
            value = work()
            self._store.set(key, json.dumps(value))
        else:
            pause = 0.001
            while not self._store.check([key]):  # when the main process fails, the watch ends this one
                time.sleep(pause)
                pause = min(2 * pause, 0.1)
            value = json.loads(self._store.get(key))
        self.watch.opened()
        return value

    def at(self, place: str) -> None:
        """Let the watch know."""
        if place != self.watch.place:
            self._store.set(f"place/{self.rank}", place)
        self.watch.place = place
        self.watch.ticks += 1

    def __enter__(self) -> Self:
        """Enter."""
        self._entered += 1
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Tell the others of an error; leave the group with the outermost context."""
        self._entered -= 1
        if error is not None and not isinstance(error, Interrupted | KeyboardInterrupt | SystemExit):
            if not self._failed:
                self._fail(error)
        elif not self._entered:
            self.watch.close()
            dist.destroy_process_group()

    def _fail(self, error: BaseException) -> None:
        """Publish an error, and see to it that the run says it once and writes it down.

        Raises GymError, another process's, where that failed before.
        """
        self._failed = True
        if not isinstance(error, GymError | torch.OutOfMemoryError):
            # Most likely a process that is gone broke the connection; the watch then finds it and ends this one.
            self.watch.suspect(error)
            time.sleep(LINGER)
        why = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        where = f"rank {self.rank}" + f", {self.watch.place}" * bool(self.watch.place)
        told = error if isinstance(error, GymError) else GymError(why, where=where)
        first = self.watch.fail(told.problems[0], told.code)
        if self.main and not first:
            raise self.watch.failure() from error
        if first and not self.main:
            told.quiet = False
            report(told, "--json" in sys.argv)
            told.quiet = True
        if first:
            self._store.set(TOLD, "1")
        if not self.main:
            self.watch.linger()


def _store(rank: int, world: int, timeout: float, again: bool = False) -> dist.Store:
    """Connect to the store of torchrun; where there is none, the main process keeps it."""
    hosts = rank == 0 and not again and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = dist.TCPStore(address, port, world, hosts, timedelta(seconds=timeout), wait_for_workers=False)
    return dist.PrefixStore(f"gym/{attempt}", store)
