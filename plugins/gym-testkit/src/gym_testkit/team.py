"""Several processes of one run with the environment of torchrun, forked from a process that has imported torch already."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass

from torch.distributed import TCPStore

from gym_testkit import warm


@dataclass
class Team:
    """Processes of one run."""

    members: list[warm.Process]
    store: TCPStore

    def codes(self, within: float = 60.0) -> list[int | None]:
        """Wait for all of them and return their exit codes."""
        ends = time.monotonic() + within
        for member in self.members:
            try:
                member.wait(max(0.0, ends - time.monotonic()))
            except subprocess.TimeoutExpired:
                continue
        codes = [member.poll() for member in self.members]
        for member in self.members:
            member.kill()
        return codes

    def errors(self) -> str:
        """Return what they have written so far."""
        return "".join(out + err for out, err in (member.said() for member in self.members))


def start(world: int, *arguments: str, **environment: str) -> Team:
    """Start `gym train *arguments` in so many processes; the environment is this one's with what is given here."""
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    shared = {"WORLD_SIZE": str(world), "MASTER_ADDR": "localhost", "MASTER_PORT": str(store.port)}
    shared |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    members = [
        warm.start(
            *("-m", "gym_core.cli", "train", *arguments),
            env={**os.environ, **shared, **environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(world)
    ]
    return Team(members, store)
