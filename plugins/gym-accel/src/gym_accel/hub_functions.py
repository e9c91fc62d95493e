"""Attention by repositories of the Hugging Face Hub, which the package `kernels` fetches and loads."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from gym_accel import HubAttention
from gym_accel.attention_functions import CUDA, HALF, by_rows, flash_rows
from gym_core import GymError
from gym_torch.kernels.kernel_functions import KernelFunctions


def attention(config: HubAttention) -> KernelFunctions:
    """Return the attention of a repository. Raises GymError where it cannot be loaded, or has none."""
    rows = flash_rows(getattr(_loaded(config), "flash_attn_varlen_func", None) or _none(config), config.deterministic)
    name = f"{config.repository} {config.revision[:12]}" + ("" if config.deterministic else " in any order")
    own = f"{config.revision}, kernels {version('kernels')}"
    return KernelFunctions(name, own, CUDA, HALF, attention=by_rows(rows, caps=True))


def _loaded(config: HubAttention) -> Any:
    from kernels import get_kernel

    try:
        return get_kernel(config.repository, revision=config.revision, trust_remote_code=config.trust_remote_code)
    except Exception as error:  # of the network, the package, and the code that was fetched
        why = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise GymError(
            f"{config.repository} cannot be loaded: {why}",
            key="model.kernels",
            fix="name a commit with a build for this machine; without a network it must lie in the cache of the Hub",
        ) from error


def _none(config: HubAttention) -> Any:
    raise GymError(
        f"{config.repository} has no flash_attn_varlen_func",
        key="model.kernels",
        fix="name a repository of FlashAttention, such as kernels-community/flash-attn2",
    )
