"""Starts the workers, one after another, and keeps the best setting of each peer."""

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


def best(peer: str, settings: Iterable[Any], steps: int = 4, skip: int = 1) -> Any:
    """Return the fastest of some settings, by a short trial of each, whose first steps do not count."""
    tried = [(spec, replace(spec, steps=steps)) for spec in settings]
    if len(tried) == 1:
        return tried[0][0]
    return max(tried, key=lambda pair: run(peer, pair[1]).speed(skip))[0]
