"""OFTv2 through peft: `y = W R^T x`, where R is block-diagonal and orthogonal, and the inputs are turned rather than the weights.

peft is right in what it computes. It is not asked for what it leaves out or changes unsaid: its `module_dropout` is never
applied, a block size that does not fit is replaced by another, and its exact rotations turn the other way than its series, so
that an adapter of the one kind cannot be read as the other (which `exact`, saved with it, keeps apart). Inputs of four
dimensions, as layers of latent attention have them, it takes for those of convolutions: they are rotated as rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import OFTConfig, PeftConfig
from peft.tuners.oft.layer import OFTRotationModule
from torch import Tensor, nn
from transformers import PreTrainedModel

from gym_adapters.config.base import split
from gym_adapters.config.oft import OFT
from gym_adapters.peft_base import PeftAdapter
from gym_adapters.target_modules import within
from gym_core import Artifact, GymError
from gym_torch.console import warn
from gym_torch.patched_forward import surround

ENOUGH = 1e-3  #: largest entry of R^T R - I at which angles count as kept


class OFTAdapter(PeftAdapter[OFT]):
    """Rotations by the Cayley transform `(I + Q)(I - Q)^-1` of a skew-symmetric Q that is zero at first (arXiv:2506.19847).

    The inverse is five terms of its Neumann series (equation 6 there), orthogonal up to `2 |Q|^4`: exact enough while the
    rotations are small, which `orthogonality` measures and `save` warns of.
    """

    def __init__(self, config: OFT, model: PreTrainedModel, seed: int = 0) -> None:
        """Put the rotations in. Raises GymError where blocks do not divide the inputs of a layer, or a layer is not there."""
        self.config = config  # which `matching` asks
        size = config.rank or config.effective_block_size or 0
        modules = split(config.target_modules)
        head = model.get_output_embeddings()
        for name, layer in ((name, model.get_submodule(name)) for name in self.matching(model)):
            chosen = modules == ("all",) or any(within(name, module) for module in modules)
            if isinstance(layer, nn.Linear) and layer is not head and chosen and layer.in_features % size:
                what = f"{size} blocks" if config.rank else f"blocks of {size}"
                raise GymError(
                    f"{what} do not divide the {layer.in_features} inputs of {name}",
                    key="adapter.rank" if config.rank else "adapter.block_size",
                    fix="name a number that divides the inputs of every adapted layer, or fewer `target_modules`",
                )
        super().__init__(config, model, seed)
        for module in self.model.modules():
            if isinstance(module, OFTRotationModule):
                surround(module, _by_row)

    def peft_config(self, target_modules: list[str], modules_to_save: list[str] | None) -> PeftConfig:
        """Return the options of OFTv2."""
        config = self.config
        return OFTConfig(
            r=config.rank or 0,
            oft_block_size=config.effective_block_size or 0,
            use_cayley_neumann=not config.exact,
            target_modules=target_modules,
            modules_to_save=modules_to_save,
            task_type="CAUSAL_LM",
        )

    @torch.no_grad()
    def orthogonality(self) -> float:
        """Return the largest entry of `|R^T R - I|` over all rotations: 0 where they keep angles exactly."""
        worst = [
            float(_error(module.weight, module.block_size))
            for module in self.model.modules()
            if isinstance(module, OFTRotationModule) and module.use_cayley_neumann
        ]
        return max(worst, default=0.0)

    def save(self, path: Path, base: str, exact: bool = False) -> Artifact:
        """Write the adapter, and warn where its rotations are none any more."""
        error = self.orthogonality()
        if error > ENOUGH:
            warn(f"the rotations are off by {error:.1g}: set `exact: true` in `adapter`, or a smaller learning rate")
        return super().save(path, base, exact)


def _by_row(module: Any, inputs: Tensor) -> Tensor:
    """Rotate inputs `[..., in]`, of however many dimensions."""
    rotated: Tensor = module.whole_forward(inputs.flatten(0, -2))
    return rotated.view(inputs.shape)


def _error(weight: Tensor, size: int) -> Tensor:
    """Return the largest entry of `|R^T R - I|` for the upper triangles `weight` `[blocks, size * (size - 1) / 2]` of Q."""
    rows, columns = torch.triu_indices(size, size, 1)
    skew = weight.new_zeros(len(weight), size, size)
    skew[:, rows, columns] = weight
    skew = skew - skew.mT
    square, unit = skew @ skew, torch.eye(size, device=weight.device)
    rotation = unit + 2 * (skew + square + square @ skew) + square @ square
    return (rotation.mT @ rotation - unit).abs().max()
