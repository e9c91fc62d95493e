"""gym-torch: the engine. Its components stand here; nothing heavy is imported until one of them is built."""

from __future__ import annotations

from gym_torch.config import (
    EarlyStopping,
    SafetensorsExporter,
    TorchAlgorithm,
    Transformers,
)
from gym_torch.distributed.strategies import DDP, FSDP
from gym_torch.planners import Planner

__version__ = "0.1.0"

__all__ = [
    "DDP",
    "FSDP",
    "EarlyStopping",
    "Planner",
    "SafetensorsExporter",
    "TorchAlgorithm",
    "Transformers",
]
