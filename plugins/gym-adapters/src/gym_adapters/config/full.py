"""Full training: every weight of the model, or of parts of one that reads images."""

from __future__ import annotations

from typing import ClassVar

from gym_adapters.config.base import PartOptions


class Full(PartOptions):
    """Trains every weight of the model.

    Trains: every weight, in fp32 whatever the precision it is stored in; tied weights once. This is also what a recipe without
    an adapter does. Of a model of images and text it is the language model, or the parts that are not frozen.

    Code: ours.

    On the disk: a plain model, which transformers loads, each weight in the precision that it came in. It is no adapter: there
    is nothing to merge, and since it changes the base, a reference is a second model.

    Not with: quantized weights, which cannot be trained.
    """

    target: ClassVar[str] = "gym_adapters.tuners.full:FullAdapter"
    saves_model: ClassVar[bool] = True

    def uniform_layers(self) -> bool:
        """Layers that are alike train alike."""
        return True
