"""gym-torch: the engine. Its components stand here; nothing heavy is imported until one of them is built."""

from __future__ import annotations

import os

from gym_torch.config import (
    EarlyStopping,
    SafetensorsExporter,
    TorchAlgorithm,
    Transformers,
)
from gym_torch.distributed.strategies import DDP, FSDP
from gym_torch.planners import Planner

__version__ = "0.1.0"

# Read by OpenMP when torch is imported. Threads that wait for each other would otherwise spin, and on a machine
# with other work to do a small model then takes ten times as long. It changes no number; a value set before stays.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__all__ = [
    "DDP",
    "FSDP",
    "EarlyStopping",
    "Planner",
    "SafetensorsExporter",
    "TorchAlgorithm",
    "Transformers",
]
