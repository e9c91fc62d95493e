"""Full training of a model, or of some parts of one that reads images."""

from __future__ import annotations

from transformers import PreTrainedModel

import gym_torch.model.adapted
from gym_adapters.config.full import Full as Options


class FullAdapter(gym_torch.model.adapted.Full):
    """Trains the weights of all parts that the options do not freeze."""

    def __init__(self, config: Options, model: PreTrainedModel, seed: int = 0) -> None:
        """Mark what trains. Raises GymError where a weight of it is quantized, or the model has no such parts."""
        super().__init__(config, model, seed, parts=config.parts())
