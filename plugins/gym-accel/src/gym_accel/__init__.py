"""gym-accel: libraries of kernels for accelerators. Nothing heavy is imported here."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import ClassVar

from gym_core import GymError
from gym_torch import KernelLibrary

__version__ = "0.1.0"
__all__ = ["Liger", "OnTriton", "Triton"]


class OnTriton(KernelLibrary):
    """Base of libraries whose kernels are written in Triton: they run on a GPU, or slowly on a CPU where it interprets them."""

    package: ClassVar[str] = "triton"
    """What must be installed, as it is imported."""
    install: ClassVar[str] = "gym-accel[triton]"
    """What brings it."""

    def missing(self) -> str:
        """Return what this machine lacks: a GPU that Triton compiles for, or `TRITON_INTERPRET=1`."""
        import torch

        if os.environ.get("TRITON_INTERPRET") == "1" or torch.cuda.is_available() or torch.xpu.is_available():
            return ""
        return "a GPU"

    def check(self) -> None:
        """Raise GymError where the package is not installed."""
        if find_spec(self.package) is None:
            why = f"the kernels of {type(self).__name__} need the package {self.package}, which is not installed"
            raise GymError(why, key="model.kernels", fix=f"pip install '{self.install}', or leave it out")


class Liger(OnTriton):
    """RMSNorm and gated activations of Liger Kernel (arXiv:2410.10989)."""

    target: ClassVar[str] = "gym_accel.liger_functions:functions"
    outside: ClassVar[str] = "a GPU"
    package: ClassVar[str] = "liger_kernel"
    install: ClassVar[str] = "gym-accel[liger]"


class Triton(OnTriton):
    """RMSNorm, gated activations, rotary positions and scores of labels in Triton, each in one pass over memory."""

    outside: ClassVar[str] = "a GPU"

    target: ClassVar[str] = "gym_accel.triton_functions:functions"
