"""Runs as they lie on the disk: `run.json`, `trainer_log.jsonl`, `metrics.jsonl` and the lock of the output directory.

Nothing of a run is kept in memory, so a second server, and one that was started again, see the same; so they do of runs that
were started in a terminal. Every file may be damaged, half written or huge.
"""

from __future__ import annotations

import json
import math
import os
import platform
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from gym_core.errors import Problem, printable
from gym_core.outputlock import OutputLock
from gym_webui.background_jobs import TRAIN, end_of, lock_of, locked, log_of, tail, under_way
from gym_webui.site import Site, within

DEPTH, FOLDERS = 6, 5000  #: levels and folders that are looked through for runs
RECORD_BYTES, METRICS_BYTES, LINE_BYTES = 2**23, 2**24, 2**16
POINTS = 400  #: of a curve that is drawn
SKIPPED = frozenset(["checkpoints", "model", "node_modules", "export", "quantized", "__pycache__"])


def runs(site: Site) -> list[dict[str, Any]]:
    """Return what the list of runs shows, the newest first."""
    found = [brief(site, folder) for folder in folders(site.folder)]
    return sorted(found, key=lambda run: (run["running"], run["changed"]), reverse=True)


def folders(root: Path) -> Iterator[Path]:
    """Yield every folder that holds a run; links are not followed."""
    seen = 0
    for place, names, files in os.walk(root):
        folder, seen = Path(place), seen + 1
        if "run.json" in files or lock_of(folder, TRAIN).name in files:
            yield folder
            names.clear()
        deep = len(folder.relative_to(root).parts) >= DEPTH or seen >= FOLDERS
        names[:] = [] if deep else sorted(name for name in names if name[:1] != "." and name not in SKIPPED)


def brief(site: Site, folder: Path) -> dict[str, Any]:
    """Return the state of a run, with its newest metrics and how far it is."""
    record, damaged = record_of(folder)
    status, problems = state(folder, record, damaged)
    newest, log = _last(folder / "metrics.jsonl"), _last(folder / "trainer_log.jsonl")
    running = status in ("running", "starting")
    return {
        "run": site.shown(folder),
        "status": status,
        "running": running,
        "problems": problems,
        "algorithm": _named(record, "algorithm"),
        "model": _named(record, "model", "path"),
        "adapter": _named(record, "adapter"),
        "step": _number(log.get("current_steps")) or _number(newest.get("step")),
        "total": _number(log.get("total_steps")),
        "left": log["remaining_time"][:20] if running and isinstance(log.get("remaining_time"), str) else "",
        "metrics": {printable(key, 80): value for key, value in newest.items() if _number(value) is not None},
        "started": record.get("started") if isinstance(record.get("started"), str) else "",
        "seconds": _seconds(record, running),
        "changed": _changed(folder),
        "here": within(folder, (site.folder,)),
    }


def record_of(folder: Path) -> tuple[dict[str, Any], bool]:
    """Return `run.json`, empty where there is none, and whether it cannot be read."""
    path = folder / "run.json"
    text = end_of(path, RECORD_BYTES)
    if not text:
        return {}, path.exists() or path.is_symlink()
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    return (found, False) if isinstance(found, dict) else ({}, True)


def state(folder: Path, record: dict[str, Any], damaged: bool) -> tuple[str, list[str]]:
    """Return one of starting, running, finished, stopped, failed and killed, and the problems of a run that failed."""
    pid, launched = process(folder), under_way(folder, TRAIN)
    if pid is not None:
        return "running", []
    if launched:
        return "starting", []
    if damaged:
        return "failed", [
            str(Problem("is damaged or too large", "run.json", fix="move it away to start a new run here"))
        ]
    said = record.get("status")
    if not record:
        return "failed", [_told_by(folder)]
    if said == "finished":
        return "finished", []
    if said == "interrupted":
        return "stopped", []
    if said == "failed":
        return "failed", _problems(record)
    return "killed", [
        str(Problem("the process ended without a word: killed, or the machine stopped", fix="continue it"))
    ]


def process(folder: Path) -> int | None:
    """Return the process that has the lock of the folder, here or on another host; None where nobody has.

    The lock names its holder, who is asked for first: a lock that is tried for a moment could refuse a run that begins just then.
    """
    try:
        pid = _holder(folder)["pid"]
        if type(pid) is not int or pid <= 1:  # what is 0 or below names many processes
            return None
        if not elsewhere(folder):
            os.kill(pid, 0)
    except PermissionError:
        pass  # it is somebody else's
    except (LookupError, OSError):
        return None
    return pid if locked(folder / OutputLock.NAME) else None


def elsewhere(folder: Path) -> str:
    """Return the host whose process has the lock of a folder, where it is not this one: here its number means another."""
    host = _holder(folder).get("host", "")
    return "" if host in ("", platform.node()[:80]) else printable(str(host), 80)


def _holder(folder: Path) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        found = json.loads(end_of(folder / OutputLock.NAME, 1000) or b"{}")
        return found if isinstance(found, dict) else {}
    return {}


def curves(folder: Path) -> dict[str, list[list[float]]]:
    """Return each metric as [step, value] of at most `POINTS` points, means where there were more."""
    found: dict[str, list[list[float]]] = {}
    for line in _lines(end_of(folder / "metrics.jsonl", METRICS_BYTES).split(b"\n")):
        step = _number(line.get("step"))
        for key, value in line.items() if step is not None else ():
            number = _number(value)
            if key not in ("step", "epoch") and number is not None and (key in found or len(found) < 60):
                found.setdefault(printable(key, 80), []).append([float(step or 0), number])
    return {key: _thinned(points) for key, points in sorted(found.items())}


def log(folder: Path) -> str:
    """Return the end of what a run wrote; of one that was started in a terminal nothing is known."""
    return tail(log_of(folder, TRAIN))


def _thinned(points: list[list[float]]) -> list[list[float]]:
    share = math.ceil(len(points) / POINTS)
    parts = [points[at : at + share] for at in range(0, len(points), share)] if share > 1 else []
    return [[part[-1][0], sum(value for _, value in part) / len(part)] for part in parts] or points


def _lines(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the lines that are JSON objects; the first of a file may lack its beginning and the last its end."""
    for line in lines:
        if len(line) > LINE_BYTES:
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            yield found


def _last(path: Path) -> dict[str, Any]:
    return next(_lines(reversed(end_of(path, LINE_BYTES).split(b"\n"))), {})


def _number(value: Any) -> float | None:
    fits = (
        isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    )  # NaN compares as False
    return value if fits else None


def _named(record: dict[str, Any], section: str, key: str = "name") -> str:
    recipe = record.get("recipe")
    part = recipe.get(section) if isinstance(recipe, dict) else None
    value = part.get(key) if isinstance(part, dict) else None
    return printable(value, 200) if isinstance(value, str) else ""


def _problems(record: dict[str, Any]) -> list[str]:
    error = record.get("error")
    listed = error.get("problems") if isinstance(error, dict) else None
    parts = ("why", "where", "key", "fix")
    return [
        str(Problem(*(str(each.get(part) or "") for part in parts)))
        for each in (listed if isinstance(listed, list) else [])[:20]
        if isinstance(each, dict)
    ]


def _told_by(folder: Path) -> str:
    """Return the last error that a log has, for a run that ended before it had a record."""
    lines = tail(log_of(folder, TRAIN), 20_000).strip().split("\n")
    begins = [number for number, line in enumerate(lines) if line.startswith("error: ")]
    return "\n".join(printable(line) for line in (lines[begins[-1] :] if begins else lines)[-8:])


def _seconds(record: dict[str, Any], running: bool) -> float | None:
    if not running:
        return _number(record.get("seconds"))
    try:
        began = datetime.fromisoformat(record["started"]).timestamp()
    except (KeyError, TypeError, ValueError):
        return None
    return max(0.0, round(time.time() - began))


def _changed(folder: Path) -> float:
    """Return when something of the run was last written."""
    times = []
    for name in ("run.json", "metrics.jsonl", log_of(folder, TRAIN).name):
        try:
            times.append((folder / name).lstat().st_mtime)
        except OSError:
            continue
    return max(times, default=0.0)
