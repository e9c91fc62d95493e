"""Linear layers with matrix products in fp8, in training and in all other passes of a run.

Each operand of a product is rounded to e4m3 (arXiv:2209.05433, section 3) with a scale for each of its rows, a power of two; the
dimension that is summed over lies along the row. Sums are fp32, results bf16, weights stay as they are. A token has a scale of
its own, so what the model says of it does not depend on what else is in the batch: with one scale for all tokens it would.
Gradients are in e4m3 too, as scales are fine (arXiv:2412.19437, section 3.3.2), and sums are not shortened to the few bits that
the fastest products of some GPUs keep (there too).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad
from transformers import PreTrainedModel

from gym_core import GymError
from gym_torch.console import say
from gym_torch.model.decoder_layers import layers_of
from gym_torch.quantization.expert_layer import runs_beside
from gym_torch.quantization.quantizable_weights import routing

Fp8Recipe = Literal["rowwise", "rowwise_with_gw_hp"]
KEY = "model.fp8"
E4M3 = torch.float8_e4m3fn
LARGEST = torch.finfo(E4M3).max
EXPONENTS = -100, 127  #: of scales; rows of zeros have the smallest one
MULTIPLE = 16  #: sizes of a matrix that the products of a GPU take
CAPABILITY = (8, 9)  #: of the first GPUs with such products


class Scaled(NamedTuple):
    """A matrix in fp8: `numbers * scales`."""

    numbers: Tensor  #: e4m3 `[rows, columns]`, rows one after another
    scales: Tensor  #: fp32 `[rows, 1]`, powers of two


def scaled(matrix: Tensor) -> Scaled:
    """Round a matrix `[rows, columns]` to fp8; columns of zeros fill it up to a size that products take.

    What a power of two divides keeps its digits, so there is one rounding, whatever the matrix is held in. Products of a row with
    a number that is not finite are not finite.
    """
    largest = torch.linalg.vector_norm(matrix, float("inf"), 1, keepdim=True, dtype=torch.float32)
    exponents = torch.log2(largest / LARGEST).ceil().nan_to_num(nan=EXPONENTS[1]).clamp(*EXPONENTS)
    bits = exponents.int() + 127 << 23  # for some devices round powers of two
    scales = bits.view(torch.float32)
    factors = scales.reciprocal().to(torch.promote_types(matrix.dtype, torch.bfloat16))  # fp16 ends at 2^16
    numbers = (matrix * factors).to(E4M3).contiguous()
    lacking = -numbers.shape[1] % MULTIPLE
    if lacking:
        numbers = pad(numbers.view(torch.uint8), (0, lacking)).view(E4M3)
    return Scaled(numbers, scales)


def product(left: Scaled, right: Scaled) -> Tensor:
    """Return `left right^T`: `[rows of left, rows of right]`, bf16."""
    found: Tensor = torch._scaled_mm(
        left.numbers, right.numbers.T, scale_a=left.scales, scale_b=right.scales.T, out_dtype=torch.bfloat16
    )
    return found


class _Linear(torch.autograd.Function):
    """`x W^T` for `x [..., in]` in bf16; its gradients are products in fp8 too, that of the weight only if `fp8_weight`."""

    @staticmethod
    def forward(
        ctx: Any, given: Tensor, weight: Tensor, numbers: Tensor | None, scales: Tensor | None, fp8_weight: bool
    ) -> Tensor:
        known = scaled(weight) if numbers is None or scales is None else Scaled(numbers, scales)
        ctx.save_for_backward(given if ctx.needs_input_grad[1] else None, weight)
        ctx.shape, ctx.fp8_weight = given.shape, fp8_weight
        return product(scaled(given.reshape(-1, given.shape[-1])), known).view(*given.shape[:-1], -1)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, by_out: Tensor) -> tuple[Tensor | None, ...]:
        given, weight = ctx.saved_tensors
        rows = by_out.reshape(-1, by_out.shape[-1])
        by_given = by_weight = None
        if ctx.needs_input_grad[0]:
            by_given = product(scaled(rows), scaled(weight.T)).view(ctx.shape)
        if ctx.needs_input_grad[1]:
            read = given.reshape(-1, given.shape[-1])
            by_weight = product(scaled(rows.T), scaled(read.T)) if ctx.fp8_weight else rows.T @ read
            by_weight = by_weight.to(weight.dtype)
        return by_given, by_weight, None, None, None


class Fp8Forward:
    """Takes the place of the forward pass of a linear layer, which stays what it is to all who look for one."""

    def __init__(self, layer: nn.Linear, recipe: Fp8Recipe) -> None:
        """Compute for a layer."""
        self.layer, self.fp8_weight = layer, recipe == "rowwise"
        self.kept: Scaled | None = None  #: the weight in fp8, while it does not change

    def __call__(self, given: Tensor) -> Tensor:
        """Return `[..., out]`, in bf16 under autocast, else as what is given."""
        weight, bias = self.layer.weight, self.layer.bias
        kept = self.kept or (None, None)
        found: Tensor = _Linear.apply(given.to(torch.bfloat16), weight, *kept, self.fp8_weight)  # type: ignore[no-untyped-call]
        found = found if torch.is_autocast_enabled(given.device.type) else found.to(given.dtype)
        return found if bias is None else found + bias.to(found.dtype)


def use(model: PreTrainedModel, recipe: Fp8Recipe | None) -> None:
    """Have the linear layers of a model that `able` finds compute in fp8; nothing without a recipe. Before an adapter is laid
    beside them, which then computes as before.
    """
    if recipe:
        for layer in able(model):
            layer.forward = Fp8Forward(layer, recipe)  # type: ignore[method-assign]


def able(model: PreTrainedModel) -> list[nn.Linear]:
    """Return the linear layers in the decoder layers of a model, but for routers and those of odd sizes.

    Raises GymError where experts would be left out, or where none is left.
    """
    parts = [module for layer in layers_of(model)[2] for module in layer.modules()]
    routers = routing(model)
    linear = [part for part in parts if type(part) is nn.Linear and id(part.weight) not in routers]
    found = [layer for layer in linear if not any(size % MULTIPLE for size in layer.weight.shape)]
    name = type(model).__name__
    if any(map(runs_beside, parts)):
        raise GymError(
            f"{name} has experts, whose products are not those of linear layers", key=KEY, fix="leave it out"
        )
    if not found:
        raise GymError(f"no linear layer of {name} has sizes that {MULTIPLE} divides", key=KEY, fix="leave it out")
    if len(found) < len(linear):
        say(f"{len(linear) - len(found)} linear layers are not computed in fp8: {MULTIPLE} does not divide their sizes")
    return found


@contextmanager
def weights_kept(model: nn.Module) -> Iterator[None]:
    """Round the weights of such layers once for all passes in the block, in which they must not change."""
    found = [own for part in model.modules() if isinstance(own := vars(part).get("forward"), Fp8Forward)]
    try:
        for each in found:
            each.kept = scaled(each.layer.weight)
        yield
    finally:
        for each in found:
            each.kept = None


def check(recipe: Fp8Recipe | None) -> None:
    """Raise GymError where this machine has no products in fp8."""
    if recipe and not has_products():
        raise GymError(
            "this machine has no products in fp8: they need a GPU of NVIDIA of compute capability 8.9, as Ada and Hopper are",
            key=KEY,
            fix="leave it out, and set `train: {precision: bf16}`",
        )


def check_precision(recipe: Fp8Recipe | None, precision: str) -> None:
    """Raise GymError where what is between the products is not in bf16."""
    if recipe and precision != "bf16":
        raise GymError(
            f"what products in fp8 give is bf16, and this run computes in {precision}",
            key=KEY,
            fix="set `train: {precision: bf16}`, or leave it out",
        )


def has_products() -> bool:
    """Whether the device that trains multiplies in fp8."""
    return torch.cuda.is_available() and not torch.version.hip and torch.cuda.get_device_capability() >= CAPABILITY
