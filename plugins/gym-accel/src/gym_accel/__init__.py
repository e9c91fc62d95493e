"""gym-accel: libraries of kernels for accelerators. Nothing heavy is imported here."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from gym_core import GymError
from gym_torch import KernelLibrary

__version__ = "0.1.0"
__all__ = [
    "FlashAttention",
    "FlashAttention2",
    "FlashAttention3",
    "FlexAttention",
    "HubAttention",
    "Liger",
    "OnGpu",
    "OnTriton",
    "Triton",
    "VarlenAttention",
]


class OnGpu(KernelLibrary):
    """Base of libraries whose kernels run on a GPU."""

    outside: ClassVar[str] = "a GPU"
    package: ClassVar[str] = ""
    """What must be installed, as it is imported; nothing where torch brings it."""
    install: ClassVar[str] = ""
    """The command that brings it."""
    capability: ClassVar[tuple[int, int]] = (0, 0)
    """Compute capability that a GPU of NVIDIA must have at least."""
    gpu: ClassVar[str] = "a GPU"
    """What such a GPU is called."""

    def missing(self) -> str:
        """Return what this machine lacks: a GPU, or one that is new enough."""
        import torch

        if torch.cuda.is_available():
            return "" if torch.version.hip or torch.cuda.get_device_capability() >= self.capability else self.gpu
        return "" if torch.xpu.is_available() and self.capability == (0, 0) else self.gpu

    def check(self) -> None:
        """Raise GymError where the package is not installed."""
        if self.package and find_spec(self.package) is None:
            why = f"the kernels of {type(self).__name__} need the package {self.package}, which is not installed"
            raise GymError(why, key="model.kernels", fix=f"{self.install}, or leave it out")


class OnTriton(OnGpu):
    """Base of libraries whose kernels are written in Triton: they run on a GPU, or slowly on a CPU where it interprets them."""

    package: ClassVar[str] = "triton"
    install: ClassVar[str] = "pip install 'gym-accel[triton]'"

    def missing(self) -> str:
        """Return what this machine lacks: a GPU that Triton compiles for, or `TRITON_INTERPRET=1`."""
        return "" if os.environ.get("TRITON_INTERPRET") == "1" else super().missing()


class Liger(OnTriton):
    """RMSNorm and gated activations of Liger Kernel (arXiv:2410.10989)."""

    target: ClassVar[str] = "gym_accel.liger_functions:functions"
    package: ClassVar[str] = "liger_kernel"
    install: ClassVar[str] = "pip install 'gym-accel[liger]'"


class Triton(OnTriton):
    """RMSNorm, gated activations, rotary positions and scores of labels in Triton, each in one pass over memory."""

    target: ClassVar[str] = "gym_accel.triton_functions:functions"


class FlexAttention(OnGpu):
    """FlexAttention of torch with blocks tuned for the model (arXiv:2412.05496); without it, the engine tries it untuned."""

    target: ClassVar[str] = "gym_accel.attention_functions:flex"

    mode: Literal["max-autotune-no-cudagraphs", "default"] = "max-autotune-no-cudagraphs"
    """Of `torch.compile`: the first tries many sizes of blocks where it meets a shape, which takes minutes."""


class FlashAttention(OnGpu):
    """Base of libraries with `flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, ...)`."""

    target: ClassVar[str] = "gym_accel.attention_functions:flash"
    distribution: ClassVar[str] = ""
    """Of the package, as it is installed."""

    deterministic: bool = True
    """Whether gradients are added in one order, so that a run that is repeated or resumed gets the same bits; a little slower."""


class FlashAttention2(FlashAttention):
    """FlashAttention-2 (arXiv:2307.08691): attention of packed rows, with windows, caps and prefixes, in bf16 and fp16."""

    package: ClassVar[str] = "flash_attn"
    distribution: ClassVar[str] = "flash-attn"
    install: ClassVar[str] = "pip install flash-attn --no-build-isolation"
    capability: ClassVar[tuple[int, int]] = (8, 0)
    gpu: ClassVar[str] = "a GPU of compute capability 8.0"


class FlashAttention3(FlashAttention):
    """FlashAttention-3 (arXiv:2407.08608), for Hopper: attention of packed rows, as FlashAttention-2."""

    package: ClassVar[str] = "flash_attn_interface"
    distribution: ClassVar[str] = "flash_attn_3"
    install: ClassVar[str] = "install the folder hopper of github.com/Dao-AILab/flash-attention"
    capability: ClassVar[tuple[int, int]] = (9, 0)
    gpu: ClassVar[str] = "a GPU of compute capability 9.0 (Hopper)"


class HubAttention(FlashAttention):
    """Attention of packed rows by a repository of the Hugging Face Hub that has `flash_attn_varlen_func`, such as FlashAttention.

    Its code is fetched and runs in this process; nothing is fetched without a GPU.
    """

    target: ClassVar[str] = "gym_accel.hub_functions:attention"
    package: ClassVar[str] = "kernels"
    install: ClassVar[str] = "pip install 'gym-accel[hub]'"
    capability: ClassVar[tuple[int, int]] = (8, 0)
    gpu: ClassVar[str] = "a GPU of compute capability 8.0"

    repository: Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$", examples=["kernels-community/flash-attn2"])]
    """Owner and name on the Hub."""
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$", examples=["0123456789abcdef0123456789abcdef01234567"])]
    """The commit, in full: a branch or a tag may say another thing tomorrow."""
    trust_remote_code: bool = False
    """Whether an owner may be anyone; without it, one that the Hub marks as a trusted publisher of kernels."""


class VarlenAttention(OnGpu):
    """The FlashAttention that torch brings (`torch.nn.attention.varlen`): attention of packed rows without caps."""

    target: ClassVar[str] = "gym_accel.attention_functions:varlen"
    capability: ClassVar[tuple[int, int]] = (8, 0)
    gpu: ClassVar[str] = "a GPU of compute capability 8.0"
