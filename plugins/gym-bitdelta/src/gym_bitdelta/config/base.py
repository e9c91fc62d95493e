"""Options that all delta quantizers have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from gym_bitdelta.config.file_size_bound import PROVENANCE, file_bytes, largest
from gym_bitdelta.fit.quant_scheme import Coding
from gym_bitdelta.safety.options import SafetyOptions
from gym_core.sections import nested_slots
from gym_quant.config.base import Sampling
from gym_torch.kinds import DeltaQuantizer

SAFETY, LAYER = 4096, 256  #: bytes of a header for what was measured of safety, and of each layer that was projected
#: Names of weights in a numbered layer; matrices anywhere else are embeddings or heads, as far as names tell.
_INSIDE = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.\d+\.")


class DeltaOptions(DeltaQuantizer, Sampling, SafetyOptions):
    """Base of quantizers that write `delta.safetensors`: what a fine-tune changed, against the base that it began with.

    Matrices inside the layers are coded. Of embeddings and heads the rows that changed are kept in fp16 where they are few, else
    all of them in 4 bits; norms, biases and routers in fp16. What an adapter of low rank changed becomes the factors of its
    singular value decomposition, whose components take two bits where they matter and one else.
    """

    target: ClassVar[str] = "gym_bitdelta.quantizer:BitDeltaQuantizer"

    ternary_above: Annotated[float, Field(ge=0, le=1)] = 0.2
    """Share of numbers that did not change above which a matrix in one bit, which has no zero, becomes three values, of 1.6 bits
    and scales. A fine-tune that was rounded to bf16 has many such numbers. 1 keeps one bit in any case."""
    low_rank: bool = True
    """Whether a change of low rank, such as that of a LoRA, is coded as two factors."""
    rank_bits: Annotated[float, Field(ge=1, le=2)] = 1.5
    """Most bits of a number of these factors on average, scales not counted."""
    rank_energy: Annotated[float, Field(ge=0, le=1)] = 0.8
    """Share of the squared change whose components take two bits, as far as `rank_bits` allows."""
    distill_steps: Annotated[NonNegativeInt, Field(examples=[2])] = 200
    """Steps of scale distillation on the data of the run: scales alone train, so that the model answers as the fine-tune does.
    The best scales on samples held out are kept, those before the first step included. Without data nothing is distilled."""
    distill_loss: Literal["mse", "kl", "hidden"] = "mse"
    """What distillation lowers: the squared distance of logits (BitDelta), the KL divergence from the fine-tune, or the squared
    distance of the states before the head."""
    distill_batch: PositiveInt = 4
    """Samples in a step of distillation."""
    distill_length: Annotated[int, Field(ge=8)] = 128
    """Most tokens of a sample of distillation."""
    distill_learning_rate: NonNegativeFloat = 0.02
    """Learning rate of distillation, of logarithms of scales; it falls to zero along a cosine."""

    calibrate: bool = False
    """Whether codes are chosen for the outputs on samples of the data, not for the weights."""
    enable_deltasoup: bool = False
    """Whether the delta is contributed to the community of gym-deltasoup in `$GYM_SOUP`, or in the folder `soup`, which merges a
    round when enough have contributed. The delta itself stays as it is."""

    def coding(self, name: str) -> Coding | None:
        """Return how the matrix of this name inside a layer is coded; None: as it is, in fp16."""
        raise TypeError(f"{type(self).__name__} does not say how weights are coded")

    def fixed_bits(self, name: str) -> int | None:
        """Return the bits that a weight has by its name, also where its change is of low rank. Default: none has any."""
        return None

    def choices(self, name: str) -> Mapping[int, Coding | None]:
        """Return how the matrix of this name may be coded, by bits, where the best choice within `budget` decides; 0 drops the
        change, 16 keeps it as it is. Default: nothing to choose.
        """
        return {}

    def patterns(self) -> Mapping[str, str]:
        """Return the patterns of names of matrices that options hold, each with its option. Default: none."""
        return {}

    def budget(self) -> int | None:
        """Return the most bytes of the file, where matrices have choices."""
        return None

    def declared_bytes(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """Return the bytes of the file where every weight changed everywhere, its header included."""
        names = sum(len(name) + 8 for name in shapes)  # each may have to be written by itself
        return names + file_bytes(largest(shapes, self.coding, inside), self.said(), provenance=self.provenance())

    def provenance(self) -> dict[str, Any]:
        """Return what the header says of where a delta comes from, as far as its length goes: with room for what is measured."""
        room = SAFETY + LAYER * self.safety_layers if self.safety_prompts else 0
        safety = {"safety": "x" * room} if room else {}
        return {**PROVENANCE, **safety, **({"deltasoup": True} if self.enable_deltasoup else {})}

    def check(self) -> None:
        """Raise GymError where harmful prompts or their judge are not there, or the prompts are too few for the threshold."""
        self.check_safety()
        if self.enable_deltasoup:
            from gym_bitdelta import community

            community.check()

    def without_components(self) -> dict[str, Any]:
        """Return the options that a delta is opened with, as plain data: none of those that only making it needed."""
        return self.model_dump(mode="json", exclude=set(nested_slots(type(self))))

    def said(self) -> dict[str, Any]:
        """Return what the header of a delta says of what made it: its name, and the options that are set."""
        return {"name": type(self).__name__} | self.model_dump(mode="json", exclude_defaults=True)


def inside(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a weight is a matrix in a layer, or a stack of them, as far as names tell."""
    return len(shape) in (2, 3) and _INSIDE.search(name) is not None
