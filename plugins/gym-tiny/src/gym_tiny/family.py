"""Where the packaged model lies."""

from __future__ import annotations

from pathlib import Path

from gym_data.kinds import Family

__all__ = ["MODEL", "locate"]

MODEL = Path(__file__).parent / "model"


def locate(config: Family) -> Path:
    """The folder that `from_pretrained` loads: config, weights, tokenizer and chat template."""
    return MODEL
