"""Operations of Liger Kernel (arXiv:2410.10989), called so that they change none of their inputs.

Its backward passes of gates write their results over what they read: here that is a copy. Two operations are left to others. Its
rotary positions read half of the angles and take the other for the same; its cross entropy rounds the loss to the precision of
the logits, and waits for the device in every call.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import torch
import triton
from liger_kernel.ops import LigerRMSNormFunction
from liger_kernel.ops.geglu import geglu_backward, geglu_forward
from liger_kernel.ops.swiglu import swiglu_backward, swiglu_forward
from torch import Tensor
from torch.autograd.function import once_differentiable

from gym_accel import Liger
from gym_torch.kernels.kernel_functions import KernelFunctions


def functions(config: Liger) -> KernelFunctions:
    """Return the functions, for the devices that Triton compiles for, or for a CPU where it interprets them."""
    devices = {"cpu"} if triton.knobs.runtime.interpret else {"cuda", "xpu"}
    own = version("liger-kernel")
    return KernelFunctions(
        f"liger {own}",
        f"{own}, triton {triton.__version__}",
        frozenset(devices),
        frozenset({torch.float32, torch.bfloat16, torch.float16}),
        rms_norm=rms_norm,
        gated=gated,
    )


def rms_norm(given: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """Return what `KernelFunctions.rms_norm` promises: Liger's mode for Gemma, which rounds only what comes out."""
    wide = given.to(torch.promote_types(given.dtype, dtype))
    found: Tensor = LigerRMSNormFunction.apply(wide, weight, eps, 0.0, "gemma", False)
    return found.to(dtype)


def gated(gate: Tensor, up: Tensor, tanh: bool) -> Tensor:
    """Return what `KernelFunctions.gated` promises."""
    found: Tensor = _Gated.apply(gate, up, tanh)
    return found


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, tanh: bool) -> Tensor:
        gate, up, out = (geglu_forward if tanh else swiglu_forward)(gate.contiguous(), up.contiguous())
        ctx.save_for_backward(gate, up)
        ctx.shape, ctx.tanh = out.shape, tanh
        found: Tensor = out
        return found

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, by_out: Tensor) -> tuple[Tensor | None, ...]:
        gate, up = (part.clone() for part in ctx.saved_tensors)
        by_gate, by_up = (geglu_backward if ctx.tanh else swiglu_backward)(gate, up, by_out.contiguous())
        return by_gate.view(ctx.shape), by_up.view(ctx.shape), None
