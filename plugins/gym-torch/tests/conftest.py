"""Fixtures of the engine's tests. No test knows a file of this machine, and none uses more than one thread."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))  # the tests share `gym_torch_bench`

torch.set_num_threads(1)
