"""Starts the workers, one after another, and keeps the best setting of each peer."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

from peers.worker import Result, Spec

WORKER = Path(__file__).parent / "worker.py"


def run(peer: str, spec: Spec) -> Result:
    """Run one peer in a process of its own."""
    done = subprocess.run(
        [sys.executable, str(WORKER), peer, json.dumps(asdict(spec))], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{peer} failed\n{done.stderr[-3000:]}")
    return Result(**json.loads(done.stdout.strip().splitlines()[-1]))


def best(peer: str, settings: Iterable[Spec], steps: int = 4) -> Spec:
    """Return the fastest of some settings, by a short trial of each."""
    found = [
        (run(peer, replace(spec, steps=steps)).speed(skip=1), number, spec) for number, spec in enumerate(settings)
    ]
    return max(found)[2] if len(found) > 1 else found[0][2]
