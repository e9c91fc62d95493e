"""Fixtures of the planner's tests."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

TESTS = Path(__file__).parent
#: The planner is held to the engine on the engine's own data and runs: `gym_torch_bench`, `gym_torch_plans`.
sys.path[:0] = [str(TESTS), str(TESTS.parents[1] / "gym-torch" / "tests")]
torch.set_num_threads(1)
