"""Keys that name callbacks and fill their options: trackers, of gym-track, and early stopping."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gym_core.errors import Problem
from gym_core.sections import Findings

REPORT, SWANLAB, STOPPING = "report_to", "use_swanlab", "early_stopping_steps"
USUAL: dict[str, dict[str, Any]] = {
    "mlflow": {},
    "swanlab": {"mode": "cloud"},
    "tensorboard": {},
    "trackio": {"project": "huggingface"},
    "wandb": {"mode": "online"},
}
"""Trackers, and what they are told by a file that says no more."""
OPTIONS: dict[str, dict[str, str]] = {
    "run_name": dict.fromkeys(USUAL, "run"),
    "logging_dir": {"tensorboard": "folder"},
    "project": {"trackio": "project"},
    "trackio_space_id": {"trackio": "space_id"},
    "swanlab_project": {"swanlab": "project"},
    "swanlab_workspace": {"swanlab": "workspace"},
    "swanlab_run_name": {"swanlab": "run"},
    "swanlab_mode": {"swanlab": "mode"},
    "swanlab_logdir": {"swanlab": "folder"},
}
"""Keys that fill an option of trackers; without them they say nothing."""
KEYS = {REPORT, SWANLAB, STOPPING, *OPTIONS}


def callbacks(flat: dict[str, Any], found: Findings) -> list[dict[str, Any]]:
    """Take the keys of callbacks and return those that they mean."""
    patience = flat.pop(STOPPING, None)
    if patience is None:
        return _trackers(flat, found)
    if type(patience) is not int or patience < 1:
        why = f"is a number of evaluations without improvement, at least 1, not {patience!r:.40}"
        found.problems.append(Problem(why, found.where((STOPPING,)), STOPPING, "leave it out to stop at no time"))
        return _trackers(flat, found)
    return [{"name": "early_stopping", "patience": patience}, *_trackers(flat, found)]


def _trackers(flat: dict[str, Any], found: Findings) -> list[dict[str, Any]]:
    """Take the keys of trackers."""
    given = {key: flat.pop(key) for key in sorted(KEYS & flat.keys())}
    named = given.get(REPORT) or []
    names = [str(name).strip() for name in (named if isinstance(named, list) else str(named).split(","))]
    if len(names) > 1 and any(name.lower() == "none" for name in names):
        problem = Problem("says `none`, and names a tracker", found.where((REPORT,)), REPORT, "keep to one")
        found.problems.append(problem)
    names = [name for name in names if name.lower() not in ("none", "")]
    names += ["swanlab"] if given.get(SWANLAB) and "swanlab" not in names else []
    for name in [name for name in names if name not in USUAL]:
        fix = f"one of: none, {', '.join(USUAL)}; metrics.jsonl has all that is measured"
        found.problems.append(Problem(f"there is no tracker `{name}`", found.where((REPORT,)), REPORT, fix))
    return [_told(name, given) for name in names if name in USUAL]


def _told(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    said = {of[name]: given[key] for key, of in OPTIONS.items() if name in of and given.get(key) is not None}
    return {"name": name, **USUAL[name], **said}


def markdown() -> list[str]:
    """Return the lines of the table of these keys."""
    lines = ["", "## Keys of callbacks", "", "`report_to` and `use_swanlab` name callbacks of gym-track.", ""]
    lines += ["| Key | Option | Of |", "|---|---|---|"]
    for name, options in OPTIONS.items():
        lines += [f"| `{name}` | `{option}` | `{tracker}` |" for tracker, option in options.items()]
    return [*lines, f"| `{STOPPING}` | `patience` | `early_stopping` |"]
