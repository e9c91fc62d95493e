"""Which weights are used outside the module that has them, such as those of a convolution that its parent computes itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

from gym_bitdelta.runtime.layers import Layer

CACHES = ("past_key_values", "cache_params", "state")  #: what models call what they remember of a text


class _Uses(TorchFunctionMode):
    """Looks at each function of torch for weights of modules that are not running."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.found: dict[str, str] = {}  #: by the place of a module, that of the one around it that uses its weights
        self._owners: dict[int, list[str]] = {}
        for place, module in model.named_modules():
            for weight in module.parameters(recurse=False):
                if weight.numel():
                    self._owners.setdefault(weight.data_ptr(), []).append(place)
        self._running: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") != "__get__" and _tensors(result):  # a number format or a shape is no use
            for each in _tensors((args, kwargs)):
                self._note(self._owners.get(each.data_ptr(), []))
        return result

    @contextmanager
    def running(self, model: nn.Module) -> Iterator[None]:
        """Know which modules are running during the block."""
        with ExitStack() as stack:
            for place, module in model.named_modules():
                stack.callback(module.register_forward_pre_hook(partial(self._enter, place)).remove)
                stack.callback(module.register_forward_hook(self._leave, always_call=True).remove)
            yield

    def _enter(self, place: str, *given: Any) -> None:
        self._running.append(place)

    def _leave(self, *given: Any) -> None:
        self._running.pop()

    def _note(self, owners: Sequence[str]) -> None:
        if owners and self._running and not {*owners} & {*self._running}:
            around = (each for each in reversed(self._running) if not each or f"{owners[0]}.".startswith(f"{each}."))
            self.found[owners[0]] = next(around)


def _tensors(found: Any) -> list[Tensor]:
    return [each for each in tree_leaves(found) if isinstance(each, Tensor)]


@torch.no_grad()
def uses_of(model: PreTrainedModel, rows: Tensor) -> dict[str, str]:
    """Return the modules whose weights are used outside them, by place, each with the place of the one around it that does so.

    Found out by a pass over `rows` `[n, length]`, and by one over a token behind them.
    """
    uses = _Uses(model)
    with uses.running(model), uses:
        model(rows, use_cache=False)
        with suppress(Exception):  # the code of a family, called in a way that it may not know: then nobody goes on so
            found = model(rows, use_cache=True)
            model(rows[:, -1:], use_cache=True, **{key: found[key] for key in CACHES if found.get(key) is not None})
    return uses.found


def hand_over(model: PreTrainedModel, layers: list[Layer], uses: Mapping[str, str]) -> None:
    """Let modules that use the weights of others inside them see to these: their own layers would never be asked."""
    by_place = {layer.place: layer for layer in layers}
    for place, holder in uses.items():
        moved = by_place.get(place)
        if moved is None:
            continue
        moved.remove()
        layers.remove(moved)
        if holder not in by_place:
            by_place[holder] = Layer(model.get_submodule(holder), holder, {})
            layers.append(by_place[holder])
        told = {f"{inside(place, holder)}.{key}": names for key, names in moved.names.items()}
        by_place[holder].names = {**by_place[holder].names, **told}


def inside(name: str, holder: str) -> str:
    """Return what something inside a module is called there."""
    return name.removeprefix(f"{holder}.")
