"""What rows are learnt from: `datasets`, `test_datasets` and `pretraining_dataset`, and how they are written for the model."""

from __future__ import annotations

from gym_axolotl.datasets.taking import taken

__all__ = ["taken"]
