"""What a layer keeps for the backward pass, put elsewhere until then.

From an accelerator it goes to the memory of the machine, from a CPU to a temporary file: there it is no longer memory of the
process, and what the system keeps of the file in its cache it can give up at any time.
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
    """Compute a layer of `hidden` `[rows, tokens, dim]`, keeping that elsewhere and nothing else; the rest is computed again.

    Raises GymError where a file has no room.
    """
    storage = hidden.untyped_storage()._cdata

    def pack(kept: Tensor) -> Tensor | Back:
        return away(kept) if kept.untyped_storage()._cdata == storage else kept

    def unpack(kept: Tensor | Back) -> Tensor:
        return kept if isinstance(kept, Tensor) else kept()

    with saved_tensors_hooks(pack, unpack):
        return checkpoint(layer, hidden, *others, use_reentrant=False)


def away(kept: Tensor) -> Back:
    """Return what brings a tensor back that leaves the memory of its device with the last reference to it."""
    if isinstance(kept, FakeTensor):  # that of a plan: nothing to write, and no memory of the device
        mode, like = kept.fake_mode, partial(torch.empty, kept.shape, dtype=kept.dtype, device=kept.device)
        return lambda: _within(mode, like)
    if kept.device.type == "cpu":
        return _file(kept)
    device, there = kept.device, kept.to("cpu")
    return lambda: there.to(device)


def _file(kept: Tensor) -> Back:
    """Write a tensor to a file that has no name, or goes with the last reference to what is returned."""
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
    """Return the memory of a contiguous tensor."""
    return memoryview(tensor.detach().view(-1).view(torch.uint8).numpy())
