"""Quantizing holds one decoder layer: nothing of a layer is left when the next one comes."""

from __future__ import annotations

import weakref
from typing import ClassVar

from gym_core import Artifact
from gym_quant import RTN
from gym_quant.post_training.quantizer import PostTrainingQuantizer
from gym_quant.post_training.rtn import RoundToNearest

SEEN: list[weakref.ref] = []


class Watching(RoundToNearest):
    """Rounds, and looks what is left of the layers before."""

    def token_weights(self, states, predicts):
        assert all(one() is None for one in SEEN)  # the samples pass the next layer
        return super().token_weights(states, predicts)

    def quantize(self, layer):
        known = [inputs.moments for inputs in layer.inputs.values()]
        SEEN.extend(map(weakref.ref, [layer.module, *layer.module.parameters(), *known]))
        return super().quantize(layer)


class Watched(RTN):
    """The options of such a method."""

    method: ClassVar[str] = f"{__name__}:Watching"


def test_nothing_of_a_layer_is_left_when_the_next_one_comes(plain, run_in, tmp_path):
    SEEN.clear()
    config = Watched(group_size=64, calibration_samples=8, holdout_samples=8)
    PostTrainingQuantizer(config).quantize(run_in(tmp_path / "run", plain), Artifact(plain), tmp_path / "made")
    assert len(SEEN) > 30 and all(one() is None for one in SEEN)
