"""LoHa, LoKr and VeRA through peft, which is right for all three.

But that the first two draw a random number in every layer of every training step, for a dropout of whole layers that is off:
nothing can be planned or compiled past that, so their layers are kept out of training mode, in which they do nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MethodType
from typing import TypeVar

import torch
from peft import LoHaConfig, LoKrConfig, PeftConfig, VeraConfig, set_peft_model_state_dict
from peft.tuners.lycoris_utils import LycorisLayer
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from gym_adapters.config.factored import LoHa, LoKr, VeRA
from gym_adapters.config.tuner import Tuner
from gym_adapters.saved import WEIGHTS
from gym_adapters.tuned import Tuned
from gym_core import GymError
from gym_torch.model.adapted import check_state

Options = TypeVar("Options", bound=Tuner)

PROJECTIONS = ("base_model.vera_A", "base_model.vera_B")


class _Lycoris(Tuned[Options]):
    """A model with layers that stay in evaluation mode."""

    def __init__(self, config: Options, model: PreTrainedModel, seed: int = 0) -> None:
        """Put the layers in. Raises what `Tuned` raises."""
        super().__init__(config, model, seed)
        for layer in model.modules():
            if isinstance(layer, LycorisLayer):
                layer.eval().train = MethodType(_stay, layer)  # type: ignore[method-assign]


def _stay(layer: nn.Module, mode: bool = True) -> nn.Module:
    """Stand for `nn.Module.train` where that is to do nothing."""
    return layer


class Loha(_Lycoris[LoHa]):
    """`W + (alpha / rank) (B1 A1) * (B2 A2)`, element-wise (FedPara, arXiv:2108.06098, section 2.2); A2 is zero at first."""

    def options(self, modules: list[str], extra: list[str] | None) -> PeftConfig:
        """Return the options of LoHa."""
        rank = self.config.rank
        return LoHaConfig(
            r=rank,
            alpha=self.config.alpha or rank,
            target_modules=modules,
            modules_to_save=extra,
            task_type="CAUSAL_LM",
        )


class Lokr(_Lycoris[LoKr]):
    """`W + (alpha / rank) C (x) (B A)`, a Kronecker product (LyCORIS, arXiv:2309.14859, section 3.4); C is zero at first."""

    def options(self, modules: list[str], extra: list[str] | None) -> PeftConfig:
        """Return the options of LoKr."""
        rank = self.config.rank
        return LoKrConfig(
            r=rank,
            alpha=self.config.alpha or rank,
            decompose_factor=self.config.factor,
            decompose_both=self.config.both,
            target_modules=modules,
            modules_to_save=extra,
            task_type="CAUSAL_LM",
        )


class Vera(Tuned[VeRA]):
    """`W + diag(b) B diag(d) A` with random A and B, the same for all layers (arXiv:2310.11454, equation 2); b is zero at first.

    A and B are saved beside what trains, so that plain peft need not draw them anew, which differs between machines.
    """

    def options(self, modules: list[str], extra: list[str] | None) -> PeftConfig:
        """Return the options of VeRA."""
        config = self.config
        return VeraConfig(
            r=config.rank,
            projection_prng_key=config.draw,
            save_projection=True,
            vera_dropout=config.dropout,
            d_initial=config.scale,
            target_modules=modules,
            modules_to_save=extra,
            task_type="CAUSAL_LM",
        )

    def state(self) -> dict[str, Tensor]:
        """Return the vectors: the random matrices do not train."""
        return {name: weight for name, weight in super().state().items() if name not in PROJECTIONS}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Copy the vectors back; the random matrices are those drawn here."""
        check_state(self.state(), state)
        own = super().state()
        set_peft_model_state_dict(self._peft, {**state, **{name: own[name] for name in PROJECTIONS}})

    def read(self, path: Path) -> dict[str, Tensor]:
        """Return the vectors of a directory that `save` wrote. Raises GymError where other matrices were drawn for them."""
        saved, own = load_file(path / WEIGHTS), super().state()
        for name in PROJECTIONS:
            if saved[name].shape != own[name].shape or not torch.equal(saved.pop(name), own[name].cpu()):
                raise GymError(
                    "the random matrices of this VeRA adapter are not those that this machine draws",
                    where=str(path),
                    fix="open it on one like that which made it, or with plain peft, which takes them from the file",
                )
        return saved
