"""gym-data: from files and Hub datasets to tokens and the mask of what is trained. It imports no torch."""

from __future__ import annotations

from gym_data.config import DatasetConfig
from gym_data.sources import File, Hub, Named

__all__ = ["DatasetConfig", "File", "Hub", "Named"]
