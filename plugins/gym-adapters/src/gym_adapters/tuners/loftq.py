"""LoftQ (arXiv:2310.08659): a quantized base, and A and B that begin as the best correction of it.

peft's own runs on a GPU only and leaves the scaling of the update out, so that it holds for alpha = rank alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from gym_adapters import nf4
from gym_adapters.config.loftq import LoftQ
from gym_adapters.lora_base import LowRankAdapter
from gym_adapters.lora_checkpoint import ROUNDED
from gym_adapters.tuners.lora_init import factors, weight_of
from gym_core import Artifact, GymError
from gym_torch.trained_part import FirstStepBatch

MARK = "loftq."  #: begins the names of what the base was quantized beside


class Pair(NamedTuple):
    """A `[rank, in]` and B `[out, rank]`."""

    a: Tensor
    b: Tensor

    def times(self, scaling: float) -> Tensor:
        """Return `scaling B A` in fp32, rounded once, so that it is the same wherever it is computed."""
        return (scaling * (self.b.double() @ self.a.double())).float()


class Found(NamedTuple):
    """What LoftQ makes of a weight."""

    base: Tensor  #: what can be encoded, in fp32
    beside: Pair  #: what was taken out of the weight before it was rounded
    update: Pair  #: what then corrects it
    error: float  #: Frobenius norm of what is still wrong


def loftq(weight: Tensor, config: LoftQ, scaling: float) -> Found:
    """Round a weight `[out, in]` and correct it by turns, `iterations` times, and return the best of it.

    Rounding is no projection, for its levels follow the largest weight of a block; so a turn can make things worse.
    """
    rank = config.rank
    beside = Pair(weight.new_zeros(rank, weight.shape[1]), weight.new_zeros(weight.shape[0], rank))
    best: Found | None = None
    for _ in range(config.iterations):
        base = _rounded(weight, beside, config, scaling)
        update = Pair(*factors(weight - base, rank, scaling))
        found = Found(base, beside, update, float((weight - base - update.times(scaling)).norm()))
        best = found if best is None or found.error < best.error else best
        beside = update
    assert best is not None
    return best


def _rounded(weight: Tensor, beside: Pair, config: LoftQ, scaling: float) -> Tensor:
    return nf4.rounded(weight - beside.times(scaling), config.bits, config.block)


class Loftq(LowRankAdapter[LoftQ]):
    """A low-rank update beside weights that NormalFloat can hold. `initialize` rounds them and finds the update.

    What the base was rounded beside is kept, rather than the base: `load` makes it again of the original weights.
    """

    target_types: ClassVar[tuple[type[nn.Module], ...]] = (nn.Linear,)

    def __init__(self, config: LoftQ, model: PreTrainedModel, seed: int = 0) -> None:
        """Put the layers beside weights that are still what they were."""
        super().__init__(config, model, seed)
        self._beside: dict[str, Pair] = {}

    @property
    def disable_adapter(self) -> Callable[[], AbstractContextManager[None]] | None:
        """Nothing: the base is not what it was."""
        return None

    @torch.no_grad()
    def initialize(self, first_step: Iterable[FirstStepBatch] = ()) -> None:
        """Round the base and find what corrects it."""
        for name, layer in self.layers().items():
            weight = weight_of(name, layer, self.config.rank)
            found = loftq(weight, self.config, layer.scaling["default"])
            self._set(name, layer, found.base, found.beside)
            layer.lora_A["default"].weight.copy_(found.update.a)
            layer.lora_B["default"].weight.copy_(found.update.b)

    def state(self) -> dict[str, Tensor]:
        """Return the update by peft's names, and what the base was rounded beside."""
        kept = {f"{MARK}{name}.{half}": getattr(pair, half) for name, pair in self._beside.items() for half in "ab"}
        return self.trained() | kept

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Copy the update back, and round the base as it was."""
        self.load_trained({name: tensor for name, tensor in state.items() if not name.startswith(MARK)})
        for name, layer in self.layers().items():
            if f"{MARK}{name}.a" not in state:
                continue
            weight = weight_of(name, layer, self.config.rank)
            beside = Pair(*(state[f"{MARK}{name}.{half}"].to(weight.device, copy=True) for half in "ab"))
            if name not in self._beside:
                self._set(name, layer, _rounded(weight, beside, self.config, layer.scaling["default"]), beside)
            elif not all(map(torch.equal, self._beside[name], beside)):
                raise GymError(f"{name} is rounded otherwise already", fix="build the adapter on the original model")

    def save(self, path: Path, base: str, exact: bool = False) -> Artifact:
        """Write the update as peft loads it, and beside it what makes its base of the original one."""
        made = super().save(path, base, exact)
        kept = {name: tensor.contiguous() for name, tensor in self.state().items() if name.startswith(MARK)}
        save_file(kept, path / ROUNDED)
        return made

    def read(self, path: Path) -> dict[str, Tensor]:
        """Return both."""
        return super().read(path) | load_file(path / ROUNDED)

    def _set(self, name: str, layer: LoraLayer, base: Tensor, beside: Pair) -> None:
        weight = layer.get_base_layer().weight
        layer.get_base_layer().weight = nn.Parameter(base.to(weight.dtype), requires_grad=False)  # a tied one stays
        self._beside[name] = beside
