"""A vLLM server of the run's own: on loopback, with a key that nobody else knows, ended when the run ends however it ends."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gym_core import GymError
from gym_vllm.client import Client
from gym_vllm.request import LOGPROBS

if TYPE_CHECKING:
    from gym_vllm import VLLM

_POLL = 0.5  #: seconds between two looks at a server that starts


class Server:
    """One `vllm serve`, once it is started."""

    def __init__(self, config: VLLM, model: Path, log: Path) -> None:
        """Take what to serve, and the file that the server's output goes to."""
        self.config, self.model, self.log = config, model, log
        self._guard: subprocess.Popen[bytes] | None = None

    def start(self) -> tuple[str, str]:
        """Start it and return its address and key when it answers. Raises GymError when it ends, or takes too long."""
        if not shutil.which("vllm"):
            raise GymError(
                "vLLM is not installed: there is no command `vllm`",
                key="algorithm.rollouts",
                fix="pip install 'gym-vllm[vllm]', or name a server that runs: `rollouts: {name: vllm, url: ...}`",
            )
        port, key = _free_port(), secrets.token_urlsafe(32)
        environment = os.environ | {
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_API_KEY": key,
        }  # not on the command line, all see that
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
            "--logprobs-mode": LOGPROBS,
            "--generation-config": "vllm",
            "--dtype": config.dtype,
            "--gpu-memory-utilization": str(config.gpu_memory_utilization),
            "--tensor-parallel-size": str(config.tensor_parallel_size),
        }
        if config.max_model_len:
            options["--max-model-len"] = str(config.max_model_len)
        return ["vllm", "serve", str(self.model), *(part for option in options.items() for part in option)]

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
            key="algorithm.rollouts",
            fix="read its log; `gpu_memory_utilization`, `max_model_len` and `devices` are the usual causes",
        )


def _free_port() -> int:
    """Return a port of loopback that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
