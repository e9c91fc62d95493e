"""Fixtures of the drill's tests."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

#: The parts of a drill look at a run of the engine's own tests: `gym_torch_bench`.
sys.path.insert(0, str(Path(__file__).parents[2] / "gym-torch" / "tests"))
torch.set_num_threads(1)
