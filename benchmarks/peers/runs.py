"""Starts the workers, one after another, and keeps the best run of each peer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from peers.process import Spec


def run(peer: str, spec: Spec, seconds: float | None = None) -> Any:
    """Run one peer in a process of its own, and return its result, an object of `spec.result`.

    Raises SystemExit where it fails, or takes more `seconds`.
    """
    return _result(peer, spec, _started(peer, spec), seconds)


def together(peer: str, spec: Spec, processes: int) -> list[Any]:
    """Run one peer in several processes that work on one run, as torchrun starts them, and return the result of each."""
    from torch.distributed import TCPStore

    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    shared = {"WORLD_SIZE": processes, "MASTER_ADDR": "localhost", "MASTER_PORT": store.port}
    shared |= {"TORCHELASTIC_USE_AGENT_STORE": True, "OMP_NUM_THREADS": max(1, (os.cpu_count() or 1) // processes)}
    members = [_started(peer, spec, **shared, RANK=rank, LOCAL_RANK=rank) for rank in range(processes)]
    return [_result(peer, spec, member) for member in members]


def _started(peer: str, spec: Spec, **environment: Any) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    more = {"PYTHONPATH": path} | {name: str(value) for name, value in environment.items()}
    command = [sys.executable, "-m", type(spec).__module__, peer, json.dumps(asdict(spec))]
    return subprocess.Popen(command, env=os.environ | more, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _result(peer: str, spec: Spec, process: subprocess.Popen[str], seconds: float | None = None) -> Any:
    try:
        said, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        _, errors = process.communicate()
        raise SystemExit(f"{peer} failed\n{errors[-3000:]}\nit took more than {seconds:.0f} s") from None
    if process.returncode:
        raise SystemExit(f"{peer} failed\n{errors[-3000:]}")
    return spec.result(**json.loads(said.strip().splitlines()[-1]))


def fastest(peer: str, settings: Iterable[Any], warm: int) -> tuple[Any, Any]:
    """Run a peer with each of some settings; return that of the fastest run, whose first steps do not count, and its result.

    A later setting is given up where a step takes clearly longer than with the best one before.
    """
    best: tuple[Any, Any] | None = None
    for given in settings:
        spec = replace(given, warm=warm, patience=1.1 * best[1].seconds[warm] if best else None)
        result = run(peer, spec)
        whole = len(result.seconds) == spec.steps
        if best is None or (whole and result.speed(warm) > best[1].speed(warm)):
            best = spec, result
    assert best is not None, "there is no setting"
    return best
