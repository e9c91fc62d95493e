"""Fixtures of the tests of reinforcement learning."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))  # the tests share `gym_rl_bench`
torch.set_num_threads(1)
