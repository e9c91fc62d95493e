"""What quantizers of loaded models store, in files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import SerializeAsAny

from gym_core import Slot
from gym_quant.config.base import PostTraining
from gym_quant.config.hqq import HQQ
from gym_quant.config.stored_layout import Stored, data_bytes, file_bytes, header_bytes, linear
from gym_torch.kinds import LoadTimeQuantizer


class Encoded(PostTraining):
    """Write what a quantizer of loaded models, such as `hqq` or `quanto`, makes of each weight: no data decide.

    The format is Gym's own, so Gym alone loads it: as a base for adapters, to evaluate and to generate. Plain transformers
    refuses it, because its configuration names no `quant_method`. Experts that are stacked in one weight are refused.
    """

    target: ClassVar[str] = "gym_quant.post_training.encoded:EncodedQuantizer"

    quantizer: Annotated[SerializeAsAny[LoadTimeQuantizer] | None, Slot("quantizers", default="hqq")] = None
    """What encodes the weights; by default `hqq`."""

    @property
    def encoder(self) -> LoadTimeQuantizer:
        """What encodes the weights."""
        return self.quantizer or HQQ()

    def check(self) -> None:
        """Raise GymError where what encodes cannot work here."""
        self.encoder.check()

    def error_bound(self) -> float | None:
        """Return that of what encodes."""
        return self.encoder.error_bound()

    def declared_bytes(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """Return the bytes of what is stored of linear layers and of all else in fp32, with the headers of the files."""
        encoded = {name: shape for name, shape in shapes.items() if linear(name, shape)}
        rest: Stored = {name: ("F32", shape) for name, shape in shapes.items() if name not in encoded}
        names: Stored = {}
        for name in encoded:
            names |= {f"{name}_{part}": ("U8", (0, 0)) for part in ("codes", "scale")} | {
                f"{name}_shape": ("I64", (2,))
            }
        return self.encoder.declared_bytes(encoded) + file_bytes(rest) + header_bytes(names) + data_bytes(names)
