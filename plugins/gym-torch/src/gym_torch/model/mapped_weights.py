"""Works on weights that stay in their files: each is brought into memory where it is needed, and let go of again.

transformers maps files of safetensors whose weights it need not change, so a model that is loaded in the precision of its files
takes no memory before something reads it. What is read stays until the system wants the memory back; `release` asks it to.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from mmap import PAGESIZE
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, PreTrainedModel

from gym_torch.kinds import LoadTimeQuantizer
from gym_torch.model import stored_precisions
from gym_torch.model.auto_class import AutoLanguageModel
from gym_torch.model.read_weights import read_model
from gym_torch.model_files import check_weights

#: MADV_PAGEOUT of Linux: write back what was changed, and take pages out of this process; no number is lost.
PAGEOUT = 21
DONTNEED = 4  #: MADV_DONTNEED: drop pages; of a private mapping it would lose what was changed
CHUNK = 2**22  #: numbers of a weight that are raised to fp32 at a time
LOW = (torch.bfloat16, torch.float16)
CASTS = (torch.Tensor.to, torch.Tensor.type_as)  #: how code of models has inputs follow the precision of a weight


def load(
    path: Path,
    changed: Mapping[str, Any] = MappingProxyType({}),
    kind: Any = AutoLanguageModel,
    dtype: torch.dtype | str = "auto",
    quantizer: LoadTimeQuantizer | None = None,
    exact: bool = False,
) -> PreTrainedModel:
    """Load a model for use, with entries of its configuration changed; by default in the precision of its files, mapped.

    What a quantizer is given for is read and encoded layer by layer. Of files with several precisions it is the one that the
    configuration says, as the code of transformers computes in; with `exact` each weight has its own, for `Raised`.

    Raises GymError where there are no weights in safetensors, or some are missing, do not fit or are not finite.
    """
    check_weights(path)
    shape = AutoConfig.from_pretrained(path, local_files_only=True)
    shape.get_text_config().update(changed)
    options = {"config": shape, "dtype": dtype, "local_files_only": True}
    _MAPS.clear()
    model = read_model(path, options, quantizer, kind, _finite).eval()
    if exact:
        stored_precisions.restore(model, path)
    _MAPS.clear()
    return model


_MAPS: list[range] = []  #: addresses of files of weights, as they were when they were last looked up


def release(tensor: Tensor) -> None:
    """Let the pages of a tensor go out of memory, if they come from a file of weights; what it holds stays the same."""
    libc = _libc()
    if libc is None or tensor.device.type != "cpu" or not tensor.is_contiguous() or not tensor.nbytes:
        return
    _MAPS[:] = _MAPS or _mapped()
    begin, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
    if any(begin in place and end - 1 in place for place in _MAPS):
        start, stop = -(-begin // PAGESIZE) * PAGESIZE, end // PAGESIZE * PAGESIZE
        if start < stop:
            advice = DONTNEED if _unchanged(start, stop) else PAGEOUT
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), advice)


def _unchanged(start: int, stop: int) -> bool:
    """Whether every page at these addresses is as it is in its file: then it may be dropped, though others map it too."""
    with Path("/proc/self/pagemap").open("rb", buffering=0) as pages:
        pages.seek(start // PAGESIZE * 8)
        entries = torch.frombuffer(bytearray(pages.read((stop - start) // PAGESIZE * 8)), dtype=torch.int64)
    held = (entries >> 62) & 3  # bits: present, swapped
    return bool(((held == 0) | ((held == 2) & ((entries >> 61) & 1 == 1))).all())


def _mapped() -> list[range]:
    """Return where files of weights lie in the memory of this process; an empty one where there are none."""
    lines = [line.split() for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()]
    places = [words[0].partition("-") for words in lines if words[-1].endswith(".safetensors")]
    return [range(int(begin, 16), int(end, 16)) for begin, _, end in places] or [range(0)]


@torch.no_grad()
def _finite(weight: Tensor) -> bool:
    """Return whether all numbers are finite, looking at a few at a time."""
    found = True
    for piece in weight.flatten().split(CHUNK):
        found = found and bool(torch.stack(piece.aminmax()).isfinite().all())
        release(piece)
    return found


@cache
def _libc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if sys.platform == "linux" else None


class Raised(TorchFunctionMode):
    """A context in which a model with weights in a lower precision computes what it would if all of them were in fp32.

    They are raised where they are used, one after another, large matrices piece by piece; so the memory that this takes is that
    of the largest weight that is no matrix, and a few megabytes. A model that is mapped is let go of on the way.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Compute in fp32 what mixes it with a lower precision, and leave in fp32 what would follow a weight in that."""
        given = dict(kwargs or {})
        if func in CASTS and args[0].dtype == torch.float32:
            found = func(*args, **given)
            return args[0].to(found.device) if found.dtype in LOW else found
        if func is functional.embedding:
            found = func(*args, **given)
            release(_weight(args, given))
            return found.float()
        if func is functional.linear and _mixed([*args, *given.values()]):
            return _linear(*args, **given)
        if func.__name__.endswith("_") or not _mixed([*args, *given.values()]):
            return func(*args, **given)
        return func(*map(_raise, args), **{name: _raise(value) for name, value in given.items()})


def _weight(args: Sequence[Any], given: Mapping[str, Any]) -> Tensor:
    weight: Tensor = given["weight"] if "weight" in given else args[1]
    return weight


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    rows = max(1, CHUNK // weight.shape[1])
    pieces = []
    for piece in weight.detach().split(rows):
        pieces.append(functional.linear(input.float(), piece.float()))
        release(piece)
    found = torch.cat(pieces, dim=-1)
    return found if bias is None else found + bias.float()


def _mixed(values: Sequence[Any]) -> bool:
    found = {value.dtype for value in values if isinstance(value, Tensor) and value.dtype.is_floating_point}
    return torch.float32 in found and any(dtype in found for dtype in LOW)


def _raise(value: Any) -> Any:
    if not isinstance(value, Tensor) or value.dtype not in LOW:
        return value
    raised = value.detach().float()
    release(value)
    return raised
