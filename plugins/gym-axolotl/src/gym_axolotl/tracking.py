"""Keys that name callbacks and fill their options: trackers, of gym-track, and early stopping."""

from __future__ import annotations

from typing import Any

from gym_core.errors import Problem
from gym_core.sections import Findings

STOPPING = "early_stopping_patience"
SWITCHES = {
    "use_wandb": "wandb",
    "use_mlflow": "mlflow",
    "use_tensorboard": "tensorboard",
    "use_trackio": "trackio",
    "use_swanlab": "swanlab",
}
"""Keys that choose a tracker."""
CHOOSING = {
    "wandb_project": "wandb",
    "mlflow_experiment_name": "mlflow",
    "trackio_project_name": "trackio",
    "swanlab_project": "swanlab",
}
"""Keys of which a name chooses a tracker as well, unless its switch is off."""
OPTIONS: dict[str, tuple[str, str]] = {
    "wandb_project": ("wandb", "project"),
    "wandb_entity": ("wandb", "entity"),
    "wandb_name": ("wandb", "run"),
    "wandb_mode": ("wandb", "mode"),
    "mlflow_tracking_uri": ("mlflow", "uri"),
    "mlflow_experiment_name": ("mlflow", "experiment"),
    "mlflow_run_name": ("mlflow", "run"),
    "trackio_project_name": ("trackio", "project"),
    "trackio_run_name": ("trackio", "run"),
    "trackio_space_id": ("trackio", "space_id"),
    "swanlab_project": ("swanlab", "project"),
    "swanlab_experiment_name": ("swanlab", "run"),
    "swanlab_workspace": ("swanlab", "workspace"),
    "swanlab_mode": ("swanlab", "mode"),
}
"""Keys that fill an option of a tracker; without it they say nothing."""
USUAL = {"wandb": {"mode": "online"}, "swanlab": {"mode": "cloud"}}  #: what a file means that says no more
KEYS = frozenset({STOPPING, *SWITCHES, *OPTIONS})


def callbacks(flat: dict[str, Any], found: Findings) -> list[dict[str, Any]]:
    """Take the keys of callbacks and return those that they mean; `load_best_model_at_end` goes with early stopping."""
    given = {key: value for key in sorted(KEYS & flat.keys()) if (value := flat.pop(key)) is not None}
    patience, made = given.get(STOPPING), []
    if patience is not None and (type(patience) is not int or patience < 1):
        why = f"is a number of evaluations without improvement, at least 1, not {patience!r:.40}"
        found.problems.append(Problem(why, found.where((STOPPING,)), STOPPING, "leave it out to stop at no time"))
    elif patience:
        flat.setdefault("load_best_model_at_end", True)
        made.append({"name": "early_stopping", "patience": patience})
    off = {tracker for key, tracker in SWITCHES.items() if given.get(key) is False}
    on = {tracker: None for key, tracker in SWITCHES.items() if given.get(key)}
    on |= {tracker: None for key, tracker in CHOOSING.items() if given.get(key) and tracker not in off}
    for name in on:
        said = {option: given[key] for key, (tracker, option) in OPTIONS.items() if tracker == name and given.get(key)}
        made.append({"name": name, **USUAL.get(name, {}), **said})
    return made


def markdown() -> list[str]:
    """Return the lines of the table of these keys."""
    lines = [
        "",
        "## Keys of callbacks",
        "",
        "Trackers are those of gym-track.",
        "",
        "| Key | Option | Of |",
        "|---|---|---|",
    ]
    lines += [f"| `{key}` | chooses | `{tracker}` |" for key, tracker in SWITCHES.items()]
    lines += [f"| `{key}` | `{option}` | `{tracker}` |" for key, (tracker, option) in OPTIONS.items()]
    return [*lines, f"| `{STOPPING}` | `patience` | `early_stopping` |"]
