"""A vLLM server of the run's own: on loopback, with a key that nobody else knows, ended when the run ends however it ends."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from gym_core import GymError
from gym_vllm.client import Client
from gym_vllm.request import LOGPROBS

_POLL = 0.5  #: seconds between two looks at a server that starts


class Started(Protocol):
    """What a server is started with; `gym_vllm.VLLM` says what each means."""

    @property
    def dtype(self) -> str: ...  # noqa: D102
    @property
    def devices(self) -> str: ...  # noqa: D102
    @property
    def gpu_memory_utilization(self) -> float: ...  # noqa: D102
    @property
    def max_model_len(self) -> int | None: ...  # noqa: D102
    @property
    def tensor_parallel_size(self) -> int: ...  # noqa: D102
    @property
    def startup(self) -> float: ...  # noqa: D102


#: what training needs of a server beside that: how likely tokens were under the policy that they were drawn from
TRAINING = {"--logprobs-mode": LOGPROBS}
EXCHANGES = {"VLLM_SERVER_DEV_MODE": "1"}  #: environment of a server that is given weights


class Server:
    """One `vllm serve`, once it is started."""

    def __init__(
        self,
        config: Started,
        model: Path,
        log: Path,
        options: Mapping[str, str] = TRAINING,
        flags: Sequence[str] = (),
        environment: Mapping[str, str] = EXCHANGES,
        key: str = "algorithm.rollouts",
    ) -> None:
        """Take what to serve, the file that the server's output goes to, and further options.

        `key` is that of the recipe or the command, for errors.
        """
        self.config, self.model, self.log, self.key = config, model, log, key
        self._options, self._flags, self._environment = options, flags, environment
        self._guard: subprocess.Popen[bytes] | None = None

    def start(self) -> tuple[str, str]:
        """Start it and return its address and key when it answers. Raises GymError when it ends, or takes too long."""
        if not shutil.which("vllm"):
            raise GymError(
                "vLLM is not installed: there is no command `vllm`",
                key=self.key,
                fix=f"pip install 'gym-vllm[vllm]', or name a server that runs: `{self.key}: {{name: vllm, url: ...}}`",
            )
        port, key = _free_port(), secrets.token_urlsafe(32)
        # The key is not on the command line, which all see.
        environment = {**os.environ, **self._environment, "VLLM_API_KEY": key}
        if self.config.devices:
            environment["CUDA_VISIBLE_DEVICES"] = self.config.devices
        with self.log.open("wb") as log:
            self._guard = subprocess.Popen(
                [sys.executable, "-m", "gym_vllm.guard", *self.command(port)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the run, which first writes a checkpoint
            )
        url = f"http://127.0.0.1:{port}"
        self._wait(Client(url, key, timeout=10.0, retries=0))
        return url, key

    def command(self, port: int) -> list[str]:
        """Return the command line."""
        config = self.config
        options = {
            "--host": "127.0.0.1",
            "--port": str(port),
            "--generation-config": "vllm",
            "--dtype": config.dtype,
            "--gpu-memory-utilization": str(config.gpu_memory_utilization),
            "--tensor-parallel-size": str(config.tensor_parallel_size),
            **self._options,
        }
        if config.max_model_len:
            options["--max-model-len"] = str(config.max_model_len)
        return [
            "vllm",
            "serve",
            str(self.model),
            *(part for option in options.items() for part in option),
            *self._flags,
        ]

    def stop(self) -> None:
        """End it, if it was started."""
        if self._guard and self._guard.stdin:
            self._guard.stdin.close()
            self._guard.wait()
            self._guard = None

    def _wait(self, client: Client) -> None:
        assert self._guard is not None
        deadline = time.monotonic() + self.config.startup
        why = f"is not ready after {self.config.startup:g} s"
        while time.monotonic() < deadline:
            code = self._guard.poll()
            if code is not None:
                why = f"ended with status {code}"
                break
            try:
                client.get("/health")
                return
            except GymError:
                time.sleep(_POLL)
        said = [
            line.strip() for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()
        ]
        self.stop()
        raise GymError(
            f"the vLLM server {why}" + (f": {said[-1][:200]}" if said else ""),
            where=str(self.log),
            key=self.key,
            fix="read its log; `gpu_memory_utilization`, `max_model_len` and `devices` are the usual causes",
        )


def _free_port() -> int:
    """Return a port of loopback that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
