"""BOFT: `y = s * (W M^T x)`, where M is a product of sparse rotations, as in a fast Fourier transform (arXiv:2311.06243).

Ours and not peft's, which without its CUDA extension trains one factor in place of as many as were asked for and does not stop
at that, and multiplies matrices as large as the layer. What is saved has peft's names and shapes: it loads one factor anywhere,
and more where its extension is built.
"""

from __future__ import annotations

import torch
from peft import BOFTConfig, PeftConfig
from torch import Tensor, nn

from gym_adapters.config.base import split
from gym_adapters.config.boft import BOFT
from gym_adapters.fitting_layers import require_layers, unfit_layers
from gym_adapters.forward_hook_base import Handle, HookAdapter
from gym_adapters.peft_base import check_floating
from gym_adapters.target_modules import within
from gym_core import GymError
from gym_torch.model.adapted import Plain


class BOFTAdapter(HookAdapter[BOFT]):
    """A butterfly of rotations before each linear layer, and a scale of its outputs; unchanged at first."""

    def add_parameters(self) -> None:
        """Register `boft_R` `[factors, blocks, block, block]` and `boft_s` `[outputs, 1]` on each layer."""
        config, modules = self.config, split(self.config.target_modules)
        unfit = unfit_layers(self.model)
        linear = {name: layer for name, layer in self.model.named_modules() if isinstance(layer, nn.Linear)}
        linear = {name: layer for name, layer in linear.items() if name not in unfit}
        require_layers(() if modules == ("all",) else modules, [*linear], unfit)
        head = self.model.get_output_embeddings()
        self._names = [
            name
            for name, layer in linear.items()
            if (modules == ("all",) and layer is not head) or any(within(name, module) for module in modules)
        ]
        if not self._names:
            raise GymError(
                f"{type(self.model).__name__} has no layers that this adapter can change: none is Linear",
                key="adapter.target_modules",
                fix="set adapter: lora, or freeze",
            )
        least = config.block_size * 2 ** (config.n_butterfly_factor - 1)
        for name in self._names:
            layer = linear[name]
            if layer.in_features % least:
                raise GymError(
                    f"{config.n_butterfly_factor} factors of blocks of {config.block_size} need a multiple of {least} inputs, "
                    f"and {name} has "
                    f"{layer.in_features}",
                    key="adapter.n_butterfly_factor",
                    fix="set fewer factors, a smaller block, or fewer `target_modules`",
                )
            shape = (
                config.n_butterfly_factor,
                layer.in_features // config.block_size,
                config.block_size,
                config.block_size,
            )
            device = layer.weight.device
            layer.register_parameter("boft_R", nn.Parameter(torch.zeros(shape, device=device)))
            layer.register_parameter("boft_s", nn.Parameter(torch.ones(layer.out_features, 1, device=device)))

    def register_hooks(self) -> list[Handle]:
        """Turn what goes into each layer, and scale what comes out of it."""
        layers = [self.model.get_submodule(name) for name in self._names]
        before = [layer.register_forward_pre_hook(_turn) for layer in layers]
        return [*before, *(layer.register_forward_hook(_scale) for layer in layers)]

    def describe(self) -> str:
        """Return the shape of the butterfly and the kinds of layer it stands before."""
        kinds = dict.fromkeys(name.rpartition(".")[2] for name in self._names)
        return f"{self.config.n_butterfly_factor} factors of blocks of {self.config.block_size}: {', '.join(kinds)}"

    def peft_config(self) -> PeftConfig:
        """Return peft's options of the same adapter."""
        return BOFTConfig(
            boft_block_size=self.config.block_size,
            boft_n_butterfly_factor=self.config.n_butterfly_factor,
            target_modules=sorted(self._names),
            task_type="CAUSAL_LM",
        )

    def merged_weights(self) -> Plain:
        """Return the model with weights `s * W M^T`. Raises GymError where one is quantized.

        A head that is turned comes apart from the embeddings, which are not.
        """
        head, plain = self.model.get_output_embeddings(), super().merged_weights()
        for name in self._names:
            layer = self.model.get_submodule(name)
            check_floating(name, layer, "merged into")
            if layer is head:
                plain.config.tie_word_embeddings = False
        return plain

    @torch.no_grad()
    def merge_weight(self, name: str, weight: Tensor) -> Tensor:
        """Turn and scale the weight of a layer that is adapted."""
        path, _, part = name.rpartition(".")
        if path not in self._names or part != "weight":
            return weight
        layer = self.model.get_submodule(path)
        turned = rotate(torch.eye(weight.shape[1], device=weight.device), layer.get_parameter("boft_R"))
        return (layer.get_parameter("boft_s") * (weight.float() @ turned.T)).to(weight.dtype)


def rotate(inputs: Tensor, weight: Tensor) -> Tensor:
    """Multiply inputs `[..., n]` from the right by the rotation that `weight` `[factors, blocks, block, block]` stands for.

    It is the product of the factors `P_i D_i P_i^T`, the last one first: D_i is block-diagonal with the Cayley transforms
    `(I - S)(I + S)^-1` of the skew parts S, and P_i brings chunks of half a block together that lie 2^i chunks apart (section 4).
    Computed in fp32 at least, since it is to keep lengths.
    """
    factors, blocks, size, _ = weight.shape
    kind = torch.promote_types(inputs.dtype, torch.float32)
    with torch.autocast(inputs.device.type, enabled=False):
        weight = weight.to(kind)
        skew, unit = (weight - weight.mT) / 2, torch.eye(size, dtype=kind, device=weight.device)
        turns = torch.linalg.solve(unit + skew, unit - skew, left=False)
        rotated = inputs.to(kind)
        for number in reversed(range(factors)):
            pieces = rotated.unflatten(-1, (blocks // 2**number, 2, 2**number, size // 2))
            pieces = pieces.transpose(-2, -3).flatten(-4).unflatten(-1, (blocks, size))
            pieces = torch.einsum("...bi,bij->...bj", pieces, turns[number])
            pieces = pieces.flatten(-2).unflatten(-1, (blocks // 2**number, 2**number, 2, size // 2))
            rotated = pieces.transpose(-2, -3).flatten(-4)
    return rotated


def _turn(layer: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (rotate(args[0], layer.get_parameter("boft_R")).to(args[0].dtype), *args[1:])


def _scale(layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
    factor, bias = layer.get_parameter("boft_s").squeeze(1), layer.bias
    scaled = output * factor if bias is None else (output - bias) * factor + bias
    return scaled.to(output.dtype)
