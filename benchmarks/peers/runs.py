"""Starts the workers, one after another, and keeps the best run of each peer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from peers.process import Spec


def run(peer: str, spec: Spec) -> Any:
    """Run one peer in a process of its own, and return its result, an object of `spec.result`."""
    done = subprocess.run(
        [sys.executable, "-m", type(spec).__module__, peer, json.dumps(asdict(spec))],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{peer} failed\n{done.stderr[-3000:]}")
    return spec.result(**json.loads(done.stdout.strip().splitlines()[-1]))


def fastest(peer: str, settings: Iterable[Any], skip: int) -> tuple[Any, Any]:
    """Run a peer with each of some settings; return that of the fastest run, whose first steps do not count, and its result."""
    return max(((spec, run(peer, spec)) for spec in settings), key=lambda made: made[1].speed(skip))
