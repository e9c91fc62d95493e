"""AdaLoRA through peft (arXiv:2303.10512): `scaling B E A` with a diagonal E, whose least important entries go.

peft allocates the ranks. What makes a run go on exactly is kept here, and so is the penalty, which peft adds only to a
loss that its own wrapper computes.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import torch
from peft import AdaLoraConfig, PeftConfig, get_peft_model_state_dict
from peft.tuners.adalora import AdaLoraModel, RankAllocator
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from gym_adapters.config.adalora import AdaLoRA
from gym_adapters.lora_checkpoint import WEIGHTS
from gym_adapters.peft_base import PeftAdapter
from gym_adapters.peft_warnings import quiet
from gym_core import Artifact, GymError
from gym_torch.model.adapted import copy_state

WHOLE = "adalora.safetensors"  #: every rank, also those that are gone, and how important they are
MASK, SENSITIVITY, UNCERTAINTY = "mask.", "sensitivity.", "uncertainty."
UNKNOWN = 10**9  #: steps of a run before it says how many it has


class AdaLoraAdapter(PeftAdapter[AdaLoRA]):
    """A model with an update whose rank goes where it matters."""

    def __init__(self, config: AdaLoRA, model: PreTrainedModel, seed: int = 0) -> None:
        """Put the layers into `model`, all with the first rank."""
        super().__init__(config, model, seed)
        for name, weight in self.model.named_parameters():
            if "ranknum" in name.split("."):  # by which peft divides; in its cast to fp32 it begins to train
                weight.requires_grad_(False)
        for kept in (self._allocator.ipt, self._allocator.exp_avg_ipt, self._allocator.exp_avg_unc):
            kept |= {name: torch.zeros_like(weight) for name, weight in self._scored().items()}

    def peft_config(self, target_modules: list[str], modules_to_save: list[str] | None) -> PeftConfig:
        """Return the options of AdaLoRA, for a run of unknown length."""
        config = self.config
        return AdaLoraConfig(
            init_r=config.rank,
            target_r=config.target_rank,
            lora_alpha=config.scaled_by,  # type: ignore[arg-type] # peft only multiplies by it
            lora_dropout=config.dropout,
            beta1=config.beta1,
            beta2=config.beta2,
            orth_reg_weight=config.orth_reg_weight,
            deltaT=config.delta_t,
            total_step=UNKNOWN,
            target_modules=target_modules,
            modules_to_save=modules_to_save,
            task_type="CAUSAL_LM",
        )

    def describe(self) -> str:
        """Return both ranks, alpha and what is adapted."""
        config = self.config
        ranks = f"rank {config.rank}, in the end {config.target_rank} on average"
        return f"{ranks}, alpha {config.scaled_by:g}: {super().describe()}"

    def penalty(self) -> Tensor:
        """Return how far A and B are from orthogonal: the mean of `norm(P P^T - 1)` over them, weighted."""
        distances = []
        for name, weight in self._scored().items():
            if "lora_E" not in name.split("."):
                gram = weight @ weight.T if "lora_A" in name.split(".") else weight.T @ weight
                distances.append((gram - torch.eye(len(gram), device=gram.device)).norm())
        return self.config.orth_reg_weight * torch.stack(distances).mean()

    def after_step(self, step: int, total: int) -> None:
        """Weigh what the gradients say, and let ranks go where it is time."""
        config, options = self.config, self._options
        options.tinit, options.tfinal, options.total_step = (
            _steps(config.tinit, total),
            _steps(config.tfinal, total),
            total,
        )
        if options.tinit + options.tfinal >= total:
            raise GymError(
                f"of {total} steps none is left to let ranks go in", key="adapter", fix="set a smaller tinit or tfinal"
            )
        last = total - options.tfinal  # when the last ranks go; a step that updates nothing is not told
        late = step > last and not self._settled
        cast(AdaLoraModel, self.peft_model.base_model).update_and_allocate(last if late else step)

    def trained(self) -> dict[str, Tensor]:
        """Return what trains, by the names of the model: peft leaves out the ranks that are gone."""
        return {name: weight.detach() for name, weight in self.model.named_parameters() if weight.requires_grad}

    def load_trained(self, trained: Mapping[str, Tensor]) -> None:
        """Copy it back."""
        copy_state(self.trained(), trained)

    def state(self) -> dict[str, Tensor]:
        """Return what trains, how important each part of it was lately, and which ranks are left."""
        scores = ((SENSITIVITY, self._allocator.exp_avg_ipt), (UNCERTAINTY, self._allocator.exp_avg_unc))
        found = {mark + name: tensor for mark, tensors in scores for name, tensor in tensors.items()}
        return self.trained() | found | self._masks()

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Copy all of it back."""
        taken = {mark: _named(mark, state) for mark in (MASK, SENSITIVITY, UNCERTAINTY)}
        device = next(self.model.parameters()).device
        self.load_trained({name: tensor for name, tensor in state.items() if not name.startswith(tuple(taken))})
        allocator = self._allocator
        allocator.exp_avg_ipt = {name: tensor.to(device, copy=True) for name, tensor in taken[SENSITIVITY].items()}
        allocator.exp_avg_unc = {name: tensor.to(device, copy=True) for name, tensor in taken[UNCERTAINTY].items()}
        allocator.ipt = {name: torch.zeros_like(tensor) for name, tensor in allocator.exp_avg_ipt.items()}
        self._options.rank_pattern = {name: mask.tolist() for name, mask in taken[MASK].items()} or None

    def save(self, path: Path, base: str, exact: bool = False) -> Artifact:
        """Write what `peft.PeftModel.from_pretrained` loads, without the ranks that are gone, and beside it all there is."""
        own = self._options
        sized = copy.deepcopy(own)
        sized.base_model_name_or_path, sized.inference_mode = base, True
        sized.target_modules = sorted(sized.target_modules or ())
        self.peft_model.peft_config["default"] = sized  # peft shortens the names in it
        try:
            with quiet():  # a layer may have no rank left
                left = get_peft_model_state_dict(self.peft_model, save_embedding_layers=False)
        finally:
            self.peft_model.peft_config["default"] = own
        path.mkdir(parents=True, exist_ok=True)
        sized.save_pretrained(str(path))
        _write(left, path / WEIGHTS)
        _write(self.state() if exact else self.trained() | self._masks(), path / WHOLE)
        return self.artifact(path, base)

    def read(self, path: Path) -> dict[str, Tensor]:
        """Return all there was."""
        return load_file(path / WHOLE)

    @property
    def _options(self) -> AdaLoraConfig:
        return cast(AdaLoraConfig, self.peft_model.peft_config["default"])

    @property
    def _allocator(self) -> RankAllocator:
        return cast(AdaLoraModel, self.peft_model.base_model).rankallocator

    @property
    def _settled(self) -> bool:
        """Whether no more ranks are left than are to be in the end."""
        kept = self._options.rank_pattern
        return bool(kept) and sum(map(sum, kept.values())) <= self._allocator.target_bgt

    def _masks(self) -> dict[str, Tensor]:
        return {MASK + name: torch.tensor(kept) for name, kept in (self._options.rank_pattern or {}).items()}

    def _scored(self) -> dict[str, Tensor]:
        """Return A, E and B of every layer by the names peft's allocator knows them by."""
        parts = {"lora_A", "lora_E", "lora_B"}
        return {name: weight for name, weight in self.model.named_parameters() if parts & {*name.split(".")}}


def _steps(given: float, total: int) -> int:
    """Return a number of steps that is given as such, or as a share of all."""
    return int(given * total) if given < 1 else round(given)


def _named(mark: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(mark): tensor for name, tensor in state.items() if name.startswith(mark)}


def _write(tensors: Mapping[str, Tensor], path: Path) -> None:
    own = {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
    save_file(own, path, metadata={"format": "pt"})
