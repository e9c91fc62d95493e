"""VeRA through peft, which is right (arXiv:2310.11454)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from peft import PeftConfig, VeraConfig, set_peft_model_state_dict
from safetensors.torch import load_file
from torch import Tensor

from gym_adapters.config.vera import VeRA
from gym_adapters.lora_checkpoint import WEIGHTS
from gym_adapters.peft_base import PeftAdapter
from gym_core import GymError
from gym_torch.model.adapted import check_state

PROJECTIONS = ("base_model.vera_A", "base_model.vera_B")


class VeraAdapter(PeftAdapter[VeRA]):
    """`W + diag(b) B diag(d) A` with random A and B, the same for all layers (arXiv:2310.11454, equation 2); b is zero at first.

    A and B are saved beside what trains, so that plain peft need not draw them anew, which differs between machines.
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

    def state(self) -> dict[str, Tensor]:
        """Return the vectors: the random matrices do not train."""
        return {name: weight for name, weight in super().state().items() if name not in PROJECTIONS}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Copy the vectors back; the random matrices are those drawn here."""
        check_state(self.state(), state)
        own = super().state()
        set_peft_model_state_dict(self.peft_model, {**state, **{name: own[name] for name in PROJECTIONS}})

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
