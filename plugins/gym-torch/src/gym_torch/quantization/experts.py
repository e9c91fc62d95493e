"""Quantized experts of a mixture: a codec stores the matrix of each expert.

transformers holds the matrices of all experts of a layer in one tensor. Here each is encoded separately, and decoded only if
tokens are routed to that expert. The backward pass decodes again, one expert at a time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from gym_torch.quantization.expert_layer import StoredExperts
from gym_torch.quantization.weight_codec import ChangedCodec, WeightCodec, decoded, encoded
from gym_torch.quantization.weights import STORED


class QuantizedExperts(StoredExperts):
    """A layer of experts whose matrices a codec stores.

    The original layer declares its gate, its biases and the orientation of its matrices. It is not registered as a submodule, so
    tensors keep the names that they have without quantization.
    """

    def __init__(self, layer: nn.Module) -> None:
        """Take a layer of experts, whose tensors are then replaced one by one."""
        super().__init__()
        object.__setattr__(self, "layer", layer)  # else it would be a module of this one
        # The very tables, not what is in them: what loads, moves or replaces a bias here does so for the layer.
        self._parameters, self._buffers, self._modules = layer._parameters, layer._buffers, layer._modules
        self.is_transposed = bool(layer.is_transposed)  # peft asks for it too
        self.order = tuple(layer._parameters)  #: names of its parameters, those that are then stored too
        self.stacks: dict[str, tuple[WeightCodec, torch.Size, tuple[str, ...]]] = {}
        """By name of the tensor: codec, its shape, and names of what is stored."""
        self._is_hf_initialized = True  # transformers draws first values for what is not

    @torch.no_grad()
    def store(self, name: str, weight: Tensor, codec: WeightCodec, device: torch.device) -> None:
        """Replace the parameter `name` by the encoding of `weight`, matrix by matrix, encoded on `device`."""
        every = [encoded(codec, matrix.to(device)) for matrix in weight]
        stored = {key: torch.stack([each[key].to(weight.device) for each in every]) for key in every[0]}
        self.hold(name, codec, weight.shape, stored)

    def hold(self, name: str, codec: WeightCodec, shape: torch.Size, stored: dict[str, Tensor]) -> None:
        """Replace the parameter `name` by stored tensors, each `[experts, ...]`."""
        self.stacks[name] = codec, shape, tuple(stored)
        self._parameters.pop(name, None)
        for key, tensor in stored.items():
            self.register_buffer(f"{STORED}{name}_{key}", tensor)

    def matrix(self, name: str, expert: int) -> Tensor:
        """Return the decoded matrix of one expert, in the orientation of its tensor."""
        codec, shape, keys = self.stacks[name]
        return decoded(codec, {key: self.get_buffer(f"{STORED}{name}_{key}")[expert] for key in keys}, shape[1:])

    def stores(self, name: str) -> bool:
        """Return whether a codec stores the tensor of this name."""
        return name in self.stacks

    def product(self, name: str, rows: Tensor, ends: Tensor) -> Tensor:
        """Return every row times the matrix of its expert, `[n, out]`; rows `[n, in]` lie sorted by expert, and end at `ends`."""
        if isinstance(rows, FakeTensor):  # nobody knows where they go: the size is the same
            found: Tensor = rows @ self._turned(name, 0).to(rows.dtype)
            return found
        counts = ends.diff(prepend=ends.new_zeros(1)).tolist()
        made: Tensor = _Product.apply(rows, partial(self._turned, name), counts)  # type: ignore[no-untyped-call]
        return made

    def _turned(self, name: str, expert: int) -> Tensor:
        matrix = self.matrix(name, expert)
        return matrix if self.is_transposed else matrix.T

    def plain_weights(self) -> dict[str, Callable[[], Tensor]]:
        """Return what computes each tensor of all experts."""
        return {name: partial(self._all, name) for name in self.stacks}

    def _all(self, name: str) -> Tensor:
        return torch.stack([self.matrix(name, expert) for expert in range(self.stacks[name][1][0])])

    def shapes(self) -> dict[str, torch.Size]:
        """Return the shape of each tensor."""
        return {name: shape for name, (_, shape, _) in self.stacks.items()}

    def with_change(self, name: str, change: Tensor) -> Self:
        """Return a layer that adds `change` to the matrices of a tensor."""
        made = copy.copy(self)
        made._buffers, made.stacks = dict(self._buffers), dict(self.stacks)
        codec, shape, keys = self.stacks[name]
        codec, stored = ChangedCodec.of(codec, {key: self.get_buffer(f"{STORED}{name}_{key}") for key in keys}, change)
        made.hold(name, codec, shape, stored)
        return made

    @property
    def numbers(self) -> int:
        """How many weights are stored."""
        return sum(shape.numel() for _, shape, _ in self.stacks.values())

    def plain(self, dtype: torch.dtype) -> nn.Module:
        """Return the layer with decoded weights as parameters."""
        made = copy.deepcopy(self.layer)
        for name in [name for name in made._buffers if name.startswith(STORED)]:
            del made._buffers[name]
        for name in self.stacks:
            made.register_parameter(name, nn.Parameter(self._all(name).to(dtype), requires_grad=False))
        _arrange(made._parameters, self.order)
        return made


class _Product(torch.autograd.Function):
    """Rows of each expert times its matrix `[in, out]`, which is decoded for the product only."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, matrix: Callable[[int], Tensor], counts: list[int]) -> Tensor:
        ctx.matrix, ctx.counts = matrix, counts
        parts = enumerate(rows.split(counts))
        return torch.cat([part @ matrix(expert).to(rows.dtype) for expert, part in parts if len(part)])

    @staticmethod
    def backward(ctx: Any, by_output: Tensor) -> tuple[Tensor | None, ...]:
        parts = enumerate(by_output.split(ctx.counts))
        back = [part @ ctx.matrix(expert).to(by_output.dtype).T for expert, part in parts if len(part)]
        return torch.cat(back), None, None


def quantizable(model: nn.Module, place: str) -> QuantizedExperts:
    """Return the layer of experts at a path of a model as `QuantizedExperts`, replacing it there if need be."""
    experts = model.get_submodule(place)
    if isinstance(experts, QuantizedExperts):
        return experts
    made = QuantizedExperts(experts)
    model.set_submodule(place, made)
    return made


@contextmanager
def seen_as_parameters(model: nn.Module) -> Iterator[None]:
    """Expose tensors of quantized experts as parameters without data in the block, for code that looks for parameters."""
    layers = [layer for layer in model.modules() if isinstance(layer, QuantizedExperts)]
    for layer in layers:
        for name, (_, shape, keys) in layer.stacks.items():
            like = layer.get_buffer(f"{STORED}{name}_{keys[0]}")
            nothing = torch.zeros((), dtype=torch.float32, device=like.device).expand(shape)
            layer.register_parameter(name, nn.Parameter(nothing, requires_grad=False))
        _arrange(layer._parameters, layer.order)
    try:
        yield
    finally:
        for layer in layers:
            for name in layer.stacks:
                del layer._parameters[name]


def _arrange(parameters: dict[str, nn.Parameter | None], order: tuple[str, ...]) -> None:
    """Put parameters in an order: peft wraps tensors in that order, and names in adapter files depend on it."""
    for name in order:
        if name in parameters:
            parameters[name] = parameters.pop(name)
