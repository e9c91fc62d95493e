"""Trackers of runs, as callbacks. Each writes to local files of the run unless it is told to go elsewhere."""

from __future__ import annotations

from gym_core.lazy import lazily

_HOMES = {"gym_track.config": "MLflow SwanLab TensorBoard Tracker Trackio WandB"}
__all__, __getattr__, __dir__ = lazily(__name__, _HOMES)
