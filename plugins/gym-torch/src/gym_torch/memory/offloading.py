"""Offloads the input that a layer saves for the backward pass.

From an accelerator it goes to host memory, from a CPU to a temporary file: that is no memory of the process, and the system can
drop its pages from the cache at any time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from gym_core import GymError

Back = Callable[[], Tensor]


def checkpoint_offloaded(layer: Callable[..., Any], hidden: Tensor, *others: Any) -> Any:
    """Compute a layer of `hidden` `[rows, tokens, dim]`; only `hidden` is saved, offloaded, and the rest is recomputed.

    Raises GymError where the disk is full.
    """
    storage = hidden.untyped_storage()._cdata

    def pack(kept: Tensor) -> Tensor | Back:
        return away(kept) if kept.untyped_storage()._cdata == storage else kept

    def unpack(kept: Tensor | Back) -> Tensor:
        return kept if isinstance(kept, Tensor) else kept()

    with saved_tensors_hooks(pack, unpack):
        return checkpoint(layer, hidden, *others, use_reentrant=False)


def away(kept: Tensor) -> Back:
    """Offload a tensor, and return a function that loads it again."""
    if isinstance(kept, FakeTensor):  # that of a plan: nothing to write, and no memory of the device
        mode, like = kept.fake_mode, partial(torch.empty, kept.shape, dtype=kept.dtype, device=kept.device)
        return lambda: _within(mode, like)
    if kept.device.type == "cpu":
        return _file(kept)
    device, there = kept.device, kept.to("cpu")
    return lambda: there.to(device)


def _file(kept: Tensor) -> Back:
    """Write a tensor to an unnamed temporary file, and return a function that reads it."""
    shape, dtype = kept.shape, kept.dtype
    try:
        file = tempfile.TemporaryFile()  # noqa: SIM115 - open until the backward pass has been there
        file.write(_bytes(kept.contiguous()))
        file.flush()
    except OSError as error:
        raise GymError(
            f"activations cannot be put on the disk: {error.strerror}",
            where=tempfile.gettempdir(),
            key="train.gradient_checkpointing",
            fix="set TMPDIR to a directory with room, or `gradient_checkpointing: tiled`",
        ) from error

    def back() -> Tensor:
        found = torch.empty(shape, dtype=dtype)
        file.seek(0)
        file.readinto(_bytes(found))  # type: ignore[attr-defined]
        return found

    return back


def _within(mode: Any, made: Back) -> Tensor:
    with mode:
        return made()


def _bytes(tensor: Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor, without a copy."""
    return memoryview(tensor.detach().view(-1).view(torch.uint8).numpy())
