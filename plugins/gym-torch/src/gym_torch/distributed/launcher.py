"""Starts the processes of a run on this machine with torchrun's agent, and returns one exit code."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Sequence
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from uuid import uuid4

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from gym_core import GymError

if TYPE_CHECKING:
    from gym_torch.distributed.strategies import DDP


def launch(config: DDP, arguments: Sequence[str]) -> int:
    """Run `gym` with these arguments in `config.processes` processes; return the exit code of the first that failed.

    A signal is passed on, and the processes have `config.timeout` seconds to write their checkpoint.
    Raises GymError when processes were killed and none of them was left to say so.
    """
    assert config.processes is not None
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // config.processes)))
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(round(config.timeout) + 1))
    logging.disable(logging.ERROR)  # what torchrun has to say is said below, once
    with TemporaryDirectory() as logs:
        plan = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=config.processes,
            logs_specs=DefaultLogsSpecs(log_dir=logs),
            run_id=uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            max_restarts=0,
        )
        try:
            elastic_launch(plan, sys.executable)("-m", "gym_core.cli", *arguments)
        except SignalException as stop:
            return 128 + int(stop.sigval)
        except ChildFailedError as error:
            ended = sorted(error.failures.items(), key=lambda item: item[1].timestamp)
            codes = [failure.exitcode for _, failure in ended if failure.exitcode > 0]
            if codes:
                return codes[0]
            rank, failure = ended[0]
            name = signal.Signals(-failure.exitcode).name
            raise GymError(
                f"rank {rank} was ended by {name}, and the others with it",
                fix="the same command goes on from the last checkpoint",
            ) from None
    return 0
