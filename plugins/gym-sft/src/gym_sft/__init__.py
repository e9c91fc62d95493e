"""gym-sft: learning from examples. Configuration alone; the code that runs is in `objective.py`."""

from __future__ import annotations

from typing import ClassVar

from gym_torch import TorchAlgorithm

__version__ = "0.1.0"
__all__ = ["SFT", "Pretrain"]


class SFT(TorchAlgorithm):
    """Supervised fine-tuning: learns to give the answers of conversations. Prompts are read, not trained on."""

    objective: ClassVar[str] = "gym_sft.objective:NextToken"
    oracle: ClassVar[str] = "gym_sft.naive_losses:next_token"
    rows: ClassVar[str] = "conversation"
    branches: ClassVar[bool] = True


class Pretrain(TorchAlgorithm):
    """Continued pre-training: learns every token of plain text."""

    objective: ClassVar[str] = "gym_sft.objective:NextToken"
    oracle: ClassVar[str] = "gym_sft.naive_losses:next_token"
    rows: ClassVar[str] = "text"
