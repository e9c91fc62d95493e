"""LoftQ (arXiv:2310.08659): a quantized base, and A and B that begin as the best correction of it.

peft's own runs on a GPU only and leaves the scaling of the update out, so that it holds for alpha = rank alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
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
from gym_torch.model.stored_precisions import stored_dtype
from gym_torch.quantization.weights import quantized
from gym_torch.trained_part import FirstStepBatch

MARK, BEGAN = "loftq.", "began."  #: begin the names of what the base was quantized beside, and of what A and B began as
Rounding = Callable[[Tensor], Tensor]  #: from a weight to the nearest one that can be stored


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


def loftq(weight: Tensor, config: LoftQ, scaling: float, rounded: Rounding | None = None) -> Found:
    """Round a weight `[out, in]` and correct it by turns, `iterations` times, and return the best of it.

    Rounding is that of the options, or what `rounded` does. It is no projection, for its levels follow the largest weight of a
    block; so a turn can make things worse.
    """
    rank, rounded = config.rank, rounded or partial(nf4.rounded, bits=config.bits, block=config.block_size)
    beside = Pair(weight.new_zeros(rank, weight.shape[1]), weight.new_zeros(weight.shape[0], rank))
    best: Found | None = None
    for _ in range(config.iterations):
        base = rounded(weight - beside.times(scaling))
        update = Pair(*factors(weight - base, rank, scaling))
        found = Found(base, beside, update, float((weight - base - update.times(scaling)).norm()))
        best = found if best is None or found.error < best.error else best
        beside = update
    assert best is not None
    return best


class LoftQAdapter(LowRankAdapter[LoftQ]):
    """A low-rank update beside weights that are rounded. `initialize` rounds them and finds the update.

    Where the base is quantized, its quantizer rounds, and stores what it rounded: the original weights are read from their files
    again, one after another. Else it is NormalFloat, and Q lies in the precision of the files of
    the base, whatever that is loaded in: then it is the same wherever it is made again.

    What the base was rounded beside is kept, rather than the base: `load` makes it again of the original weights.
    """

    target_types: ClassVar[tuple[type[nn.Module], ...]] = (nn.Linear,)
    starts_from_weights: ClassVar[bool] = True

    def __init__(self, config: LoftQ, model: PreTrainedModel, seed: int = 0) -> None:
        """Put the layers beside weights that are still what they were."""
        super().__init__(config, model, seed)
        self._stored = stored_dtype(model)
        self._beside: dict[str, Pair] = {}
        self._start: dict[str, Pair] = {}
        """What A and B began as."""

    @property
    def disable_adapter(self) -> Callable[[], AbstractContextManager[None]] | None:
        """Nothing: the base is not what it was."""
        return None

    @property
    def at_start(self) -> Callable[[], AbstractContextManager[None]] | None:
        """What puts the first A and B in the place of those that train, over the same base."""
        return self._at_start

    @contextmanager
    def _at_start(self) -> Iterator[None]:
        trained = {name: _pair_of(layer) for name, layer in self.layers().items()}
        try:
            for name, layer in self.layers().items():
                _put(layer, self._start[name])
            yield
        finally:
            for name, layer in self.layers().items():
                _put(layer, trained[name])

    @torch.no_grad()
    def initialize(self, first_step: Iterable[FirstStepBatch] = ()) -> None:
        """Round the base and find what corrects it."""
        for name, layer in self.layers().items():
            weight = _whole(name, layer, self.config.rank)
            found = loftq(weight, self.config, layer.scaling["default"], self._rounding(layer))
            self._set(name, layer, weight, found.beside)
            for value, first in zip(_pair_of(layer), found.update, strict=True):
                value.copy_(first)
            self._start[name] = Pair(*(half.contiguous() for half in found.update))  # as those that train lie

    def state(self) -> dict[str, Tensor]:
        """Return the update by peft's names, and what the base was rounded beside."""
        return self.trained() | _named(MARK, self._beside) | _named(BEGAN, self._start)

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Copy the update back, and round the base as it was."""
        self.load_trained({name: tensor for name, tensor in state.items() if not name.startswith((MARK, BEGAN))})
        for name, layer in self.layers().items():
            if f"{MARK}{name}.a" not in state:
                continue
            if f"{BEGAN}{name}.a" in state:
                self._start[name] = _pair(BEGAN, name, state, layer)
            beside = _pair(MARK, name, state, layer)
            if name not in self._beside:
                self._set(name, layer, _whole(name, layer, self.config.rank), beside)
            elif not all(map(torch.equal, self._beside[name], beside)):
                raise GymError(f"{name} is rounded otherwise already", fix="build the adapter on the original model")

    def save(self, path: Path, base: str, exact: bool = False) -> Artifact:
        """Write the update as peft loads it, and beside it what makes its base of the original one."""
        made = super().save(path, base, exact)
        marks = (MARK, BEGAN) if exact else MARK  # what it began with is for a reference alone
        kept = {name: tensor.contiguous() for name, tensor in self.state().items() if name.startswith(marks)}
        save_file(kept, path / ROUNDED)
        return made

    def read(self, path: Path) -> dict[str, Tensor]:
        """Return both."""
        return super().read(path) | load_file(path / ROUNDED)

    def _set(self, name: str, layer: LoraLayer, weight: Tensor, beside: Pair) -> None:
        under, rest = layer.get_base_layer(), weight - beside.times(layer.scaling["default"])
        if stores := quantized(under):
            stores.quantize(rest)
        else:
            base = nf4.rounded(rest, self.config.bits, self.config.block_size).to(self._stored)
            under.weight = nn.Parameter(base.to(under.weight.dtype), requires_grad=False)  # a tied one stays
        self._beside[name] = beside

    def _rounding(self, layer: LoraLayer) -> Rounding | None:
        """Return what the quantizer of the base makes of a weight; None where the options decide."""
        under = quantized(layer.get_base_layer())
        if under is None:
            return None
        ignored = self.config.model_fields_set & {"bits", "block_size"}
        if ignored:
            raise GymError(
                "the quantizer of the base decides how it is rounded",
                key=f"adapter.{min(ignored)}",
                fix="leave it out, or set it at model.quantization",
            )
        return under.rounded


def _whole(name: str, layer: LoraLayer, rank: int) -> Tensor:
    """Return the weight `[out, in]` in fp32 as it was before anything was rounded. Raises what `weight_of` does."""
    weight, under = weight_of(name, layer, rank), quantized(layer.get_base_layer())
    original = under.original() if under else weight
    if original is None:
        raise GymError(
            f"{name} was drawn and quantized, and nothing holds what was drawn",
            key="model.init",
            fix="start from weights in files, or set adapter: lora",
        )
    return original.to(weight.device).float()


def _pair_of(layer: LoraLayer) -> Pair:
    """Return the parameters A and B of a layer."""
    return Pair(layer.lora_A["default"].weight, layer.lora_B["default"].weight)


def _put(layer: LoraLayer, pair: Pair) -> None:
    """Have a layer compute with other tensors in the place of A and B."""
    for module, value in zip((layer.lora_A["default"], layer.lora_B["default"]), pair, strict=True):
        module.weight = value if isinstance(value, nn.Parameter) else nn.Parameter(value, requires_grad=False)


def _named(mark: str, pairs: Mapping[str, Pair]) -> dict[str, Tensor]:
    return {f"{mark}{name}.{half}": getattr(pair, half) for name, pair in pairs.items() for half in "ab"}


def _pair(mark: str, name: str, state: Mapping[str, Tensor], layer: LoraLayer) -> Pair:
    device = layer.lora_A["default"].weight.device
    return Pair(*(state[f"{mark}{name}.{half}"].to(device, copy=True) for half in "ab"))
