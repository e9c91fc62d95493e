"""Which experts each token of a mixture goes to: recorded where it is sampled, forced where it is trained on.

Between sampling and update a router may choose otherwise, by rounding or because another engine sampled, and the ratio of the
two policies then says nothing: rollout routing replay, arXiv:2510.11370. Only the choice is forced. How much each chosen
expert counts is computed anew, so the router learns.

The routers are those that transformers declares. A router chooses by one `topk` over its experts, and that is what is watched
and overruled here, so that each family keeps its own way to weigh them. It knows no rollouts and no losses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from gym_core import GymError
from gym_torch.batch import Example, Piece
from gym_torch.memory.gradient_checkpointing import recomputable
from gym_torch.packing import Layout

FREE = -1  #: in place of an expert, where the router chooses for itself

T = TypeVar("T")
Experts = npt.NDArray[np.int16]


class Routers:
    """The routers of a model, made ready to be watched and overruled; they work as before until they are."""

    def __init__(self, model: PreTrainedModel) -> None:
        """Find and prepare them. Raises GymError where the model has none, or chooses experts in a way not known here."""
        recorder = (model._can_record_outputs or {}).get("router_logits")
        kind = recorder.target_class if recorder else ()
        self.routers: list[Router] = []
        for layer in recomputable(model):
            for module in layer.modules():
                if isinstance(module, kind):
                    self.routers.append(Router(layer, module, len(self.routers)))
        if not self.routers:
            raise GymError(
                f"{type(model).__name__} has no routers: it is no mixture of experts, or one that Gym does not know",
                key="algorithm.routing_replay",
                fix="leave `routing_replay` out",
            )
        self.try_out(model)

    @torch.no_grad()
    def try_out(self, model: PreTrainedModel) -> None:
        """Record the choice for three tokens, force another, and see that it is taken. Raises GymError where it is not."""
        tokens = torch.arange(3, device=model.device)[None]
        run = model.base_model
        _, own = self.record(lambda: run(input_ids=tokens, use_cache=False))
        other = (own + 1) % min(int(router.module.num_experts) for router in self.routers)
        _, found = self.record(lambda: run(input_ids=tokens, use_cache=False, experts=other[None]))
        if not torch.equal(found, other):
            raise GymError(
                f"{type(model).__name__} chooses its experts in a way that Gym does not know",
                key="algorithm.routing_replay",
                fix="leave `routing_replay` out",
            )

    def record(self, run: Callable[[], T]) -> tuple[T, Tensor]:
        """Return what `run` returns, and the experts `[tokens, layers, k]` int16 that the tokens went to meanwhile.

        `run` calls the model once; the tokens are those of all rows, row after row, padding included.
        """
        for router in self.routers:
            router.watched, router.chosen = True, None
        try:
            result = run()
            chosen = [router.chosen for router in self.routers]
        finally:
            for router in self.routers:
                router.watched, router.chosen = False, None
        found = [each for each in chosen if each is not None]
        if len(found) < len(chosen):
            raise GymError("a router chose without being seen", key="algorithm.routing_replay")
        return result, torch.stack(found, dim=1).to(torch.int16)


class Router:
    """One router of a model. Its hooks hold it, so a copy of the model has one of its own."""

    watched = False  #: whether its choice is kept in `chosen`
    chosen: Tensor | None = None  #: `[tokens, k]`, of the last call that was watched
    forced: Tensor | None = None  #: `[tokens, k]`, experts of the call that follows; FREE where it chooses

    def __init__(self, layer: nn.Module, module: nn.Module, number: int) -> None:
        """Watch `module`, which lies in `layer`, and is that many-th of the routers of the model."""
        self.module, self.number = module, number
        self._choice: _Choice | None = None
        layer.register_forward_pre_hook(self._hand, with_kwargs=True)
        module.register_forward_pre_hook(self._enter)
        module.register_forward_hook(self._leave, always_call=True)

    def _hand(self, layer: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, Any]:
        """Take from what a layer is called with which experts are forced, again when the layer is computed again."""
        experts = options.get("experts")  # [rows, length, layers, k]
        self.forced = None if experts is None else experts[:, :, self.number].flatten(0, 1)
        return inputs, {name: value for name, value in options.items() if name != "experts"}

    @torch.compiler.disable
    def _enter(self, module: nn.Module, inputs: Any) -> None:
        """Begin to watch, where it is asked what it chooses, or told what to."""
        if self.forced is not None or self.watched:
            self._choice = _Choice(self)
            self._choice.__enter__()

    @torch.compiler.disable
    def _leave(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        """End it, also where the router raised an error or a layer is computed again in part."""
        if self._choice is not None:
            choice, self._choice = self._choice, None
            choice.__exit__(None, None, None)


class _Choice(TorchFunctionMode):
    """Watches one router at work: the `topk` over its experts is where it chooses."""

    def __init__(self, router: Router) -> None:
        """Take the router, whose module knows how many experts there are and how many it chooses."""
        super().__init__()
        self.router = router

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function, and overrule it where it is the choice."""
        result = func(*args, **(kwargs or {}))
        if func not in (torch.topk, Tensor.topk):
            return result
        router, scores, own = self.router, args[0], result.indices
        known = (router.module.num_experts, router.module.top_k)
        if scores.dim() != 2 or (scores.shape[-1], own.shape[-1]) != known:
            return result  # a first choice, of groups of experts
        if router.forced is not None:
            own = torch.where(router.forced == FREE, own, router.forced.to(own.dtype))
            result = torch.return_types.topk((scores.gather(-1, own), own))
        if router.watched:
            router.chosen = own
        return result


def lay_out(
    layout: Layout, pieces: Sequence[Example], prefixes: Sequence[int | None], experts: Sequence[Experts]
) -> Tensor:
    """Return the experts of each piece `[length, layers, k]` where `layout` lays out its tokens: `[rows, length, layers, k]`.

    Padding is FREE.
    """
    ends = np.cumsum([len(piece.tokens) for piece in pieces])
    places = [
        Piece(piece.id, np.arange(end - len(piece.tokens) + 1, end + 1, dtype=np.int32), piece.trained)
        for piece, end in zip(pieces, ends, strict=True)
    ]
    every = np.concatenate([np.full_like(experts[0][:1], FREE), *experts])
    return torch.from_numpy(every)[layout.lay_out(places, prefixes).tokens]  # token 0 is padding
