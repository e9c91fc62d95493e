"""Fixtures of the exporters' tests. None uses more than one thread."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
