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


def run(peer: str, spec: Spec, seconds: float | None = None) -> Any:
    """Run one peer in a process of its own, and return its result, an object of `spec.result`.

    Raises SystemExit where it fails, or takes more `seconds`.
    """
    before = os.environ.get("PYTHONPATH")
    try:
        done = subprocess.run(
            [sys.executable, "-m", type(spec).__module__, peer, json.dumps(asdict(spec))],
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [before])])},
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as error:
        said = error.stderr.decode(errors="replace") if isinstance(error.stderr, bytes) else error.stderr or ""
        raise SystemExit(f"{peer} failed\n{said[-3000:]}\nit took more than {seconds:.0f} s") from None
    if done.returncode:
        raise SystemExit(f"{peer} failed\n{done.stderr[-3000:]}")
    return spec.result(**json.loads(done.stdout.strip().splitlines()[-1]))


def fastest(peer: str, settings: Iterable[Any], skip: int) -> tuple[Any, Any]:
    """Run a peer with each of some settings; return that of the fastest run, whose first steps do not count, and its result."""
    return max(((spec, run(peer, spec)) for spec in settings), key=lambda made: made[1].speed(skip))
