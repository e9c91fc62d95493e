"""Detects a process that died or hangs, and ends the others with an error that has its rank, samples and stack.

A thread in every process. It tells the store that its process is alive and how far it is, and looks after the others: the
main process after all, the others after the main one. It knows nothing of training.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from gym_core import GymError, Problem
from gym_core.cli import report
from gym_core.record import RunRecord

if TYPE_CHECKING:
    from gym_torch.distributed.strategies import DDP

FAILURE, TOLD = "failure", "told"  #: keys of the store: the first failure, and that its process has printed it
GRACE = 5.0  #: seconds that a process that ends leaves to the others
_ON_LINUX = sys.platform == "linux"


class Watch(threading.Thread):
    """The thread. `place` and `ticks` are set by the thread that trains."""

    def __init__(self, store: dist.Store, rank: int, world: int, config: DDP, output: Path) -> None:
        """Watch `world` processes through a store of its own; `output` is that of the run."""
        super().__init__(daemon=True, name="watch")
        self.store, self.rank, self.world, self.timeout, self.output = store, rank, world, config.timeout, output
        self.place, self.ticks = "", 0
        #: Who speaks without a store.
        self._keeper = 0 if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" else 1
        self.urgent = False
        self._interval = min(0.5, config.timeout / 10)
        self.closing = threading.Event()
        self._beats = 0
        self._seen: dict[tuple[int, str], tuple[Any, float]] = {}  #: newest value of a rank, and since when
        self._peers: dict[int, dict[str, Any]] = {}
        self._stack: Any = None
        store.set(f"peer/{rank}", json.dumps({"pid": os.getpid(), "born": _born(os.getpid()), "host": _host()}))

    def opened(self) -> None:
        """Make ready the file for this process's stack: the output directory is this run's now."""
        if self._stack is None:
            file = self.stack_of(self.rank)
            file.parent.mkdir(parents=True, exist_ok=True)
            self._stack = file.open("w", encoding="utf-8")
            if _ON_LINUX:  # another process can ask for the stack, even when this one is stopped
                # One thread's alone: those of the others change while they are read.
                faulthandler.register(signal.SIGUSR1, file=self._stack, all_threads=False)

    def stack_of(self, rank: int) -> Path:
        """Return the file that holds the stack of a process after it ended a run."""
        return self.output / "stacks" / f"rank-{rank}.txt"

    def run(self) -> None:
        """Look after the others until `close`."""
        others = range(self.world) if self.rank == 0 else range(1)
        closing = False
        while not closing:
            try:
                self._beats += 1
                self.store.set(f"beat/{self.rank}", json.dumps([self._beats, self.ticks, bool(self.place)]))
                failure = json.loads(self.store.get(FAILURE)) if self.store.check([FAILURE]) else None
                if failure and failure["rank"] != self.rank:
                    self._end(failure)
                self._judge(others)
            except (dist.DistError, RuntimeError):  # whoever keeps the store is gone, and the run with it
                if not self.closing.is_set():
                    why = (
                        f"torchrun at {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']} does not answer any more"
                    )
                    fix = "the same command goes on from the last checkpoint"
                    self._end({"problem": asdict(Problem(why, self.place, fix=fix)), "code": 1, "rank": self._keeper})
            closing = self.closing.wait(self._interval)

    def close(self) -> None:
        """Say that this process is done; the main one, which may keep the store, waits a little for the others."""
        self.store.set(f"done/{self.rank}", "1")
        ends = time.monotonic() + GRACE
        waiting = [f"done/{rank}" for rank in range(self.world)] if self.rank == 0 else []
        while waiting and not self.store.check(waiting) and time.monotonic() < ends:
            time.sleep(0.01)
        self.closing.set()
        self.join()
        if self._stack is not None:
            if _ON_LINUX:
                faulthandler.unregister(signal.SIGUSR1)
            self._stack.close()
            file = self.stack_of(self.rank)
            if not file.stat().st_size:
                file.unlink()
            with suppress(OSError):  # those of other processes may still be there
                file.parent.rmdir()

    def suspect(self, error: BaseException) -> None:
        """Keep the trace of an error that may come from a process that is gone, and no longer wait for signs of life."""
        if self._stack is not None:
            traceback.print_exception(error, file=self._stack)
            self._stack.flush()
        self.urgent = True

    def fail(self, problem: Problem, code: int) -> bool:
        """Stop watching and publish why the run ends; False where another process did before."""
        self.closing.set()
        return self._publish(problem, code)

    def _publish(self, problem: Problem, code: int) -> bool:
        mine = json.dumps({"problem": asdict(problem), "code": code, "rank": self.rank})
        return self.store.compare_set(FAILURE, "", mine) == mine.encode()

    def failure(self) -> GymError:
        """Return what another process published, once it has printed it."""
        ends = time.monotonic() + GRACE
        while not self.store.check([TOLD]) and time.monotonic() < ends:
            time.sleep(0.01)
        return _error(json.loads(self.store.get(FAILURE)))

    def linger(self) -> None:
        """Leave the main process the time to write down how the run ended: torchrun kills it when this one has left."""
        ends = time.monotonic() + GRACE
        while self._alive(0) is not False and time.monotonic() < ends:
            time.sleep(0.05)

    def _judge(self, ranks: Sequence[int]) -> None:
        """End the run where one of these is not done and gave no sign for too long, or keeps the others waiting."""
        now = time.monotonic()
        ticks: dict[int, int] = {}
        stuck = False
        for rank in ranks:
            gone = self._alive(rank) is False  # looked at first: one that is done ends soon after it said so
            if self.store.check([f"done/{rank}"]):
                continue
            if gone:
                if self.store.check([FAILURE]):
                    return  # it said why it ends, and its stack stays
                self.stack_of(rank).unlink(missing_ok=True)  # it had no time to write one
                self._blame([rank], "is gone: killed, or out of memory")
            if not self.store.check([f"beat/{rank}"]):
                continue
            beats, done, bounded = json.loads(self.store.get(f"beat/{rank}"))
            silent = now - self._since(rank, "beats", beats, now)
            if silent > (min(GRACE / 2, self.timeout) if self.urgent else self.timeout):
                self._blame([rank], f"gave no sign of life for {silent:.0f} s")
            still = now - self._since(rank, "ticks", done, now)
            if bounded and silent < self.timeout / 2:  # else how far it is is old news
                ticks[rank] = done
                stuck = stuck or still > self.timeout
        # Those that wait stand as still as the one they wait for, which has done the least: only who sees all can tell.
        if stuck and len(ticks) == self.world:
            late = [rank for rank in ticks if ticks[rank] == min(ticks.values())]
            whole = len(late) == self.world
            self._blame(late, f"{'do' if whole else 'does'} not come along for {self.timeout:g} s")

    def _since(self, rank: int, what: str, value: Any, now: float) -> float:
        before, since = self._seen.get((rank, what), (None, now))
        if before != value:
            since = now
        self._seen[rank, what] = value, since
        return since

    def _blame(self, ranks: list[int], what: str) -> None:
        """Get the stacks of these ranks where that is possible from here, publish the failure and end."""
        for rank in ranks:
            self._ask_for_stack(rank)
        names = ", ".join(map(str, ranks[:5]))
        where = self.store.get(f"place/{ranks[0]}").decode() if self.store.check([f"place/{ranks[0]}"]) else ""
        has = [rank for rank in ranks if self.stack_of(rank).exists() and self.stack_of(rank).stat().st_size]
        stack = (
            f"its stack is {self.stack_of(has[0])}" if has else f"stacks of the others are in {self.stack_of(0).parent}"
        )
        fix = f"{stack}; the same command goes on from the last checkpoint"
        self._publish(Problem(f"rank{'s' * (len(ranks) > 1)} {names} {what}", where, fix=fix), GymError.code)
        self._end(json.loads(self.store.get(FAILURE)))

    def _ask_for_stack(self, rank: int) -> None:
        """Have a process of this machine write its stack, waking it up should it be stopped."""
        if rank == self.rank:
            self._dump()
        elif _ON_LINUX and self._alive(rank) and self._stack is not None:
            os.kill(self._peers[rank]["pid"], signal.SIGCONT)
            time.sleep(0.1)  # the signal is the main thread's, unless that has one to handle already
            with suppress(ProcessLookupError):  # it may end meanwhile
                os.kill(self._peers[rank]["pid"], signal.SIGUSR1)
            ends = time.monotonic() + GRACE / 2
            while not self.stack_of(rank).stat().st_size and time.monotonic() < ends:
                time.sleep(0.02)

    def _dump(self) -> None:
        if self._stack is not None and not self.stack_of(self.rank).stat().st_size:
            faulthandler.dump_traceback(self._stack, all_threads=True)

    def _end(self, failure: dict[str, Any]) -> None:
        """End this process, whatever its main thread waits for."""
        if self.closing.is_set():
            return
        self._dump()
        error = _error(failure)
        if failure["rank"] == self.rank:
            error.quiet = False
            report(error, "--json" in sys.argv)
            with suppress(dist.DistError, RuntimeError):
                self.store.set(TOLD, "1")
        if self.rank == 0:
            record = RunRecord(self.output / "run.json")
            if self._stack is not None:  # else the output is not this run's yet
                record.update(status="failed", error={"problems": [failure["problem"]]})
        else:
            with suppress(dist.DistError, RuntimeError):
                self.linger()
        os._exit(failure["code"])

    def _alive(self, rank: int) -> bool | None:
        """Whether a process of this machine lives; None for one of another machine."""
        if rank not in self._peers and self.store.check([f"peer/{rank}"]):
            self._peers[rank] = json.loads(self.store.get(f"peer/{rank}"))
        peer = self._peers.get(rank)
        if peer is None or peer["host"] != _host() or not _ON_LINUX:
            return None
        return _born(peer["pid"]) == peer["born"]


def _error(failure: dict[str, Any]) -> GymError:
    error = GymError([Problem(**failure["problem"])])
    error.code, error.quiet = failure["code"], True
    return error


def _host() -> str:
    """Return what tells machines, and containers on one machine, apart."""
    return f"{socket.gethostname()} {Path('/proc/self/ns/pid').stat().st_ino if _ON_LINUX else ''}"


def _born(pid: int) -> str:
    """Return when a process started, in ticks of the system; empty for one that is no more."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else fields[18]
