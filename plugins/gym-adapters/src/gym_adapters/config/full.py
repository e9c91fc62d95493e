"""Full training: every weight of the model."""

from __future__ import annotations

from typing import ClassVar

from gym_core import Adapter


class Full(Adapter):
    """Trains every weight of the model.

    Trains: every weight, in fp32 whatever the precision it is stored in; tied weights once. This is also what a recipe without
    an adapter does.

    Code: ours.

    On the disk: a plain model, which transformers loads, each weight in the precision that it came in. It is no adapter: there
    is nothing to merge, and since it changes the base, a reference is a second model.

    Not with: quantized weights, which cannot be trained.

    Proof: every weight changes, and is in the state (`test_full_trains_everything`); quantized ones are refused by name
    (`test_quantized_weights_cannot_be_trained`); a run trains as many as planned, and goes on from a crash to the same bits
    (`test_it_is_planned_trained_and_continued`); `gym explain` says how many train (`test_explain_says_how_much_trains`).
    """

    target: ClassVar[str] = "gym_torch.model.adapted:Full"

    def uniform_layers(self) -> bool:
        """Every layer trains."""
        return True
