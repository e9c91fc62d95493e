"""gym-data: from files and Hub datasets to tokens and the mask of what is trained. It imports no torch.

The public names below are imported on first use, so that a source of somebody else's costs no more than its kind.
"""

from __future__ import annotations

from gym_core.lazy import lazily

_HOMES = {
    "gym_data.config": "DatasetConfig",
    "gym_data.kinds": "Data DataAlgorithm Family Format Rows Source Template",
    "gym_data.sources": "File Hub Named",
}
__all__, __getattr__, __dir__ = lazily(__name__, _HOMES)
