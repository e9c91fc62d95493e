"""VeRA through peft, which is right (arXiv:2310.11454)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from peft import PeftConfig, VeraConfig, set_peft_model_state_dict
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from gym_adapters.config.vera import VeRA
from gym_adapters.lora_checkpoint import WEIGHTS
from gym_adapters.peft_base import PeftAdapter
from gym_core import GymError
from gym_torch.model.adapted import check_state

PROJECTIONS = ("base_model.vera_A", "base_model.vera_B")


class VeraAdapter(PeftAdapter[VeRA]):
    """`W + diag(b) B diag(d) A` with random A and B, the same for all layers (arXiv:2310.11454, equation 2); b is zero at first.

    A and B are saved beside what trains, and taken from there: drawn anew they differ between machines, and with the precision of
    the weights.
    """

    def peft_config(self, target_modules: list[str], modules_to_save: list[str] | None) -> PeftConfig:
        """Return the options of VeRA."""
        config = self.config
        return VeraConfig(
            r=config.rank,
            projection_prng_key=config.projection_prng_key,
            save_projection=True,
            vera_dropout=config.dropout,
            d_initial=config.d_initial,
            target_modules=target_modules,
            modules_to_save=modules_to_save,
            task_type="CAUSAL_LM",
        )

    def __init__(self, config: VeRA, model: PreTrainedModel, seed: int = 0) -> None:
        """Draw the matrices, in the precision of the weights. Raises what its base does."""
        self._drawn: dict[str, Tensor] = {}  # kept aside while others are in their place
        super().__init__(config, model, seed)

    def state(self) -> dict[str, Tensor]:
        """Return the vectors, which alone train; with the random matrices where these are not the ones drawn here."""
        return self.trained() if self._drawn else _vectors(self.trained())

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Copy the vectors back, and the random matrices: those drawn here, but where the state has others."""
        own = self.trained()
        check_state(_vectors(own), _vectors(state))
        drawn = self._drawn or {name: own[name].clone() for name in PROJECTIONS}
        others = {name: state[name] for name in PROJECTIONS if name in state}
        set_peft_model_state_dict(self.peft_model, {**drawn, **state})
        self._drawn = drawn if others else {}

    def read(self, path: Path) -> dict[str, Tensor]:
        """Return the vectors of a directory that `save` wrote, with its random matrices where others are drawn here.

        Raises GymError where it has none, or of another shape.
        """
        saved, own = load_file(path / WEIGHTS), {**self.trained(), **self._drawn}
        for name in PROJECTIONS:
            if name not in saved or saved[name].shape != own[name].shape:
                raise GymError(
                    f"its random matrices are not in {WEIGHTS}, or have another shape than those of this model",
                    where=str(path),
                    fix="save it with its matrices (peft: save_projection=True), for a model of this width",
                )
        drawn = all(torch.equal(saved[name], own[name].cpu()) for name in PROJECTIONS)
        return _vectors(saved) if drawn else saved


def _vectors(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: weight for name, weight in weights.items() if name not in PROJECTIONS}
