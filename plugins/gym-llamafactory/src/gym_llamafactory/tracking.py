"""Keys that name trackers, which are callbacks of gym-track, and fill their options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gym_core.errors import Problem
from gym_core.sections import Findings

REPORT, SWANLAB = "report_to", "use_swanlab"
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
KEYS = {REPORT, SWANLAB, *OPTIONS}


def trackers(flat: dict[str, Any], found: Findings) -> list[dict[str, Any]]:
    """Take the keys of trackers and return the callbacks that they mean."""
    given = {key: flat.pop(key) for key in sorted(KEYS & flat.keys())}
    named = given.get(REPORT) or []
    names = [str(name).strip() for name in (named.split(",") if isinstance(named, str) else named)]
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
