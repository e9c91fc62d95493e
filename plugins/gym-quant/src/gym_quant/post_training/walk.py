"""Computes a model layer by layer: samples wait before each decoder layer, and only that one is in memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gym_core import GymError
from gym_quant.post_training.calibration import Rows
from gym_quant.post_training.method import Inputs
from gym_quant.post_training.separate_experts import ignoring
from gym_torch.model.decoder_layers import layers_of
from gym_torch.model.mapped_weights import Raised, release

CHUNK = 256  #: tokens whose logits are in memory at once
Weigh = Callable[[Tensor, Tensor], Tensor | None]
AGREES = 1e-3  #: how far logits may be off, relative to their norm, when the model is computed layer by layer


class Call(NamedTuple):
    """What a decoder layer is called with beside its input, by one batch: some families say there what the tokens are."""

    args: tuple[Any, ...]
    options: dict[str, Any]

    def sharing(self, other: Call) -> Call:
        """Return it with the tensors of another one where they are equal, such as masks and positions: most are."""
        args = _sharing(self.args, other.args)
        return Call(args, {name: _sharing(value, other.options.get(name)) for name, value in self.options.items()})


class Walk:
    """The samples of one set, before the decoder layer that is next."""

    def __init__(self, model: PreTrainedModel, rows: Rows) -> None:
        """Compute the embeddings."""
        self.model, self.rows = model, rows
        self.layers = list(layers_of(model)[2])
        self.calls: list[list[Call]] = []  # of each batch, for each layer
        self.more: int | None = None  # what a layer returns behind its states, in a tuple; None: the states alone
        self.states = [self._begin(rows.tokens[part]) for part in rows.batches()]  # of each batch [rows, length, dim]

    def forward(self, number: int, layer: nn.Module) -> None:
        """Let all samples through a layer, of this number."""
        self.states = [self.through(number, layer, batch) for batch in range(len(self.states))]

    def through(self, number: int, layer: nn.Module, batch: int) -> Tensor:
        """Return what a layer, of this number, makes of the states of a batch `[rows, length, dim]`."""
        states, call = self.states[batch], self.calls[batch][number]
        found = layer(states, *call.args, **call.options)
        return found if isinstance(found, Tensor) else found[0]

    def inputs(
        self, number: int, layer: nn.Module, linears: Mapping[str, nn.Linear], weigh: Weigh = lambda *_: None
    ) -> dict[str, Inputs]:
        """Return what is known of the inputs of each linear layer, with all samples let through once.

        `weigh` is a `Method.token_weights`. What experts read counts the same, for no token of the batch goes with it.
        """
        found: dict[str, Inputs] = {}
        here: list[Tensor] = []  # which tokens of the batch are no padding
        seen: list[tuple[Tensor, Inputs]] = []  # of the batch

        def watch(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
            def add(module: nn.Module, args: tuple[Tensor, ...]) -> None:
                known = next((own for inputs, own in seen if inputs is args[0]), None)
                own = found.setdefault(name, known or Inputs(linears[name].in_features))
                if own is not known:
                    seen.append((args[0], own))

            return add

        hooks = [linear.register_forward_pre_hook(watch(name)) for name, linear in linears.items()]
        for batch, part in enumerate(self.rows.batches()):
            here[:], seen[:] = [self.rows.real[part]], []
            apart = ignoring(layer, here[0].flatten())
            made = self.through(number, layer, batch)
            for hook in apart:
                hook.remove()
            weights = weigh(made[here[0]], self.rows.predicts[part][here[0]])
            for inputs, own in seen:
                if inputs.dim() == 2:
                    own.add(inputs)
                else:
                    own.add(_by_token(inputs, here[0]), weights)
        for hook in hooks:
            hook.remove()
        found |= {name: Inputs(each.in_features) for name, each in linears.items() if name not in found}
        means = {id(own): own.averaged() for own in {id(own): own for own in found.values()}.values()}
        return {name: means[id(own)] for name, own in found.items()}

    def outputs(self, number: int, layer: nn.Module) -> Tensor:
        """Return what a layer, of this number, makes of the samples of the first batch, `[tokens, dim]`."""
        return self.through(number, layer, 0)[self.rows.real[: self.rows.at_once]]

    def logits(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the tokens to predict `[n]` and their logits `[n, vocabulary]`, behind the last layer, a few at a time."""
        for states, part in zip(self.states, self.rows.batches(), strict=True):
            predicts = self.rows.predicts[part]
            tokens, chosen = self.rows.tokens[part].roll(-1, 1)[predicts], states[predicts]
            for some, own in zip(tokens.split(CHUNK), chosen.split(CHUNK), strict=True):
                if len(some):
                    yield some, self._head(some[None], own[None])

    def check(self) -> None:
        """Raise GymError where, behind the last layer, the model as a whole computes something else of the last sample.

        That is one of the last batch: what only the first one was asked would be found out.
        """
        row = int(self.rows.predicts.any(1).nonzero()[-1])
        hooks = [layer.register_forward_hook(lambda layer, *_: _let_go(layer)) for layer in self.layers]
        with torch.no_grad(), Raised():
            whole = self.model(self.rows.tokens[row : row + 1], use_cache=False).logits[0].float()
        for hook in hooks:
            hook.remove()
        predicts = self.rows.predicts[row]
        batch, place = divmod(row, self.rows.at_once)
        found = self._head(self.rows.tokens[row, predicts][None], self.states[batch][place, predicts][None])
        if not (found - whole[predicts]).norm() <= AGREES * whole[predicts].norm():
            raise self._not_by_layers()

    def _not_by_layers(self, why: str = "") -> GymError:
        return GymError(
            f"{type(self.model).__name__} cannot be computed layer by layer{why}",
            key="quantization",
            fix="quantize it as it is loaded instead: `model.quantization`",
        )

    @torch.no_grad()
    def _begin(self, tokens: Tensor) -> Tensor:
        calls: list[Call] = []
        first: list[Tensor] = []

        def record(states: Tensor, *args: Any, **options: Any) -> Any:
            if not first:
                first.append(states)
                real: Any = type(self.layers[0]).forward(self.layers[0], states, *args, **options)
                self.more = len(real) - 1 if isinstance(real, tuple) else None
            calls.append(Call(args, options))
            return self._returned(states)

        with self._instead(record):
            self.model.base_model(tokens, use_cache=False)
        if first[0].dim() != 3:  # several streams of states
            raise self._not_by_layers()
        alike = self.calls[0] if self.calls else calls
        self.calls.append([call.sharing(other) for call, other in zip(calls, alike, strict=True)])
        return first[0].float()

    @torch.no_grad()
    def _head(self, tokens: Tensor, states: Tensor) -> Tensor:
        """Return the logits `[n, vocabulary]` of states `[1, n, dim]` behind the last layer."""
        with self._instead(lambda *args, **options: self._returned(states)):
            logits: Tensor = self.model(tokens, use_cache=False).logits
        return logits[0].float()

    def _returned(self, states: Tensor) -> Any:
        """Return states as a layer of this family returns them."""
        return states if self.more is None else (states, *[None] * self.more)

    @contextmanager
    def _instead(self, forward: Callable[..., Any]) -> Iterator[None]:
        """Have something else computed in the place of every layer. Raises GymError for families whose layers return more."""
        for layer in self.layers:
            layer.forward = forward  # type: ignore[method-assign]
        try:
            with Raised():
                yield
        except Exception as error:
            why = (str(error).strip().splitlines() or [""])[0][:120]
            raise self._not_by_layers(f" ({type(error).__name__}: {why})") from error
        finally:
            for layer in self.layers:
                del layer.forward  # type: ignore[method-assign]


def _by_token(inputs: Tensor, real: Tensor) -> Tensor:
    """Return the inputs `[n, in]` of tokens that are `real` `[rows, length]`; those of latent attention have one head for all."""
    return (inputs if inputs.dim() == 3 else inputs.squeeze(1))[real]


def _sharing(value: Any, other: Any) -> Any:
    if isinstance(value, tuple) and isinstance(other, tuple) and len(value) == len(other):
        return tuple(map(_sharing, value, other))
    return other if isinstance(value, Tensor) and isinstance(other, Tensor) and _equal(value, other) else value


def _equal(value: Tensor, other: Tensor) -> bool:
    return value.dtype == other.dtype and torch.equal(value, other)


def raised(layer: nn.Module) -> nn.Module:
    """Return a copy of a layer in fp32."""
    made = copy.deepcopy(layer).float()
    _let_go(layer)
    return made.requires_grad_(False)


def _let_go(layer: nn.Module) -> None:
    """Have the memory of a layer that is mapped go back."""
    for weight in layer.parameters():
        release(weight.detach())
