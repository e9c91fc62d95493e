"""The load-balancing loss of a mixture of experts.

Switch Transformer (arXiv:2101.03961), equations 4 to 6, over all layers together, as transformers computes it: `E sum_e f_e P_e`
with `f_e` the choices of expert e and `P_e` its mean probability, per token and layer. It is a product of two means over tokens,
so the loss of several batches is not that of all their tokens: a step has the mean over its batches, by what each weighs in the
loss beside it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils.output_capturing import OutputRecorder

from gym_core import GymError
from gym_torch.batch import Batch, Piece, packed
from gym_torch.metrics import Mean, Metrics
from gym_torch.model.hidden_states import backbone_states, no_cache

KEY = "model.router_aux_loss_coef"


class LoadBalancing:
    """Watches the routers of a model in training, and computes the loss of what they did since it was asked last."""

    def __init__(self, model: PreTrainedModel, recorder: OutputRecorder, coefficient: float) -> None:
        """Watch the routers that `recorder`, as transformers declares it, names; `coefficient` is what the loss counts."""
        self.coefficient, self.index = coefficient, recorder.index
        self.chosen = int(model.config.get_text_config().num_experts_per_tok)
        self._real: Tensor | None = None  #: [tokens], which are no padding; None where nobody watches
        self._seen: list[tuple[Tensor, Tensor]] = []  #: logits [tokens, experts], and which tokens are real
        for module in model.modules():
            if isinstance(module, recorder.target_class):
                module.register_forward_hook(self._look)

    @torch.compiler.disable
    def _look(self, _router: nn.Module, _inputs: Any, output: Any) -> None:
        if self._real is not None and torch.is_grad_enabled():
            logits: Tensor = output[self.index] if isinstance(output, tuple) else output
            self._seen.append((logits.flatten(0, -2), self._real))

    @contextmanager
    def on(self, batch: Batch) -> Iterator[None]:
        """Watch what is computed for a batch. Layers that compute again in the backward pass are not seen twice."""
        real = torch.zeros_like(batch.tokens, dtype=torch.bool)
        for segment in batch.segments:
            real[segment.row, : segment.stop] = True  # what it continues stands before it in its row
        self._real = real.flatten()
        try:
            yield
        finally:
            self._real = None

    def add_to(self, loss: Tensor, metrics: Metrics, weight: float) -> tuple[Tensor, Metrics]:
        """Return the loss of a batch, a sum that is divided by the `weight` of all, with this one added; and its metrics."""
        own = self.loss()
        return loss + self.coefficient * own * weight, {**metrics, "aux_loss": Mean(own * weight)}

    def loss(self) -> Tensor:
        """Return the loss of the tokens seen since the last call: a scalar in fp32 at least, without the coefficient.

        Raises GymError where there were none: the policy computed nothing in training.
        """
        if not self._seen:
            raise GymError("no router was seen at work", key=KEY, fix="leave it out")
        counts, probabilities, rows = 0.0, 0.0, 0.0
        for logits, real in self._seen:
            shares = logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1) * real[:, None]
            chosen = torch.zeros_like(shares).scatter_(1, shares.topk(self.chosen, -1).indices, 1.0) * real[:, None]
            counts, probabilities = counts + chosen.sum(0), probabilities + shares.sum(0)
            rows = rows + real.sum()
        self._seen.clear()
        assert isinstance(counts, Tensor) and isinstance(probabilities, Tensor)
        return len(counts) * (counts.detach() * probabilities).sum() / rows**2

    def tried(self, model: PreTrainedModel) -> float:
        """Return the loss of a few tokens."""
        with torch.enable_grad(), self.on(_few(model)):
            backbone_states(model, input_ids=_few(model).tokens)
        return float(self.loss().detach())


def wanted(model: PreTrainedModel, asked: float | Literal["own"] | None) -> bool:
    """Return whether the experts of a model are to be balanced: it is `asked`, a coefficient, or its configuration says so."""
    return asked is not None or bool(model.config.get_text_config().to_dict().get("output_router_logits"))


def balance_of(model: PreTrainedModel, asked: float | Literal["own"] | None) -> LoadBalancing | None:
    """Return what balances the experts of a model where `asked`, a coefficient, or its configuration says so, else None.

    `own` asks for the coefficient of its configuration.

    Raises GymError where it is asked for and transformers has no such loss for the family, or another one than is known here.
    """
    options = model.config.get_text_config().to_dict()
    if not wanted(model, asked):
        return None
    coefficient = options.get("router_aux_loss_coef") if asked is None or asked == "own" else asked
    recorder = (model._can_record_outputs or {}).get("router_logits")
    theirs = _theirs(model)
    if theirs is None and asked is None:
        return None  # it is said, and transformers computes nothing either
    if theirs is None or coefficient is None or not isinstance(recorder, OutputRecorder):
        raise GymError(
            f"{type(model).__name__} has no load-balancing loss in transformers", key=KEY, fix="leave it out"
        )
    balance = LoadBalancing(model, recorder, coefficient)
    ours = balance.tried(model)
    if abs(ours - theirs) > (1e-3 if model.dtype == torch.float32 else 3e-2) * abs(theirs):
        why = f"{type(model).__name__} balances its experts in a way that Gym does not know"
        raise GymError(why, key=KEY, fix="set `output_router_logits: false` in its config.json, and leave the key out")
    return balance


def _few(model: PreTrainedModel) -> Batch:
    """Return a text of eight tokens."""
    return packed([Piece("trial", np.arange(1, 9, dtype=np.int32), np.ones(8, dtype=np.bool_))]).to(model.device)


@torch.no_grad()
def _theirs(model: PreTrainedModel) -> float | None:
    """Return the loss that transformers computes for it, or None where the family has none."""
    options = inspect.signature(type(model).forward).parameters
    if "output_router_logits" not in options:
        return None
    found = model(input_ids=_few(model).tokens, output_router_logits=True, **no_cache(type(model).forward)).get(
        "aux_loss"
    )
    return None if found is None else float(found)
