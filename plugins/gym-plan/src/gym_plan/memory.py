"""Predicts the memory of an optimizer step by doing it on tensors without data.

The forward and backward pass are the real ones: the policy, the objective and a batch laid out by the objective. What
they allocate is taken down operation by operation, so nothing here knows an architecture. Seen are all tensors: saved
activations, copies that autocast makes of weights (kept for the whole pass where the weight trains, one at a time where
it is frozen), logits of one chunk of the head, gradients as they come. Not seen is what libraries keep to themselves:
packing buffers of matrix products, CUDA contexts and workspaces, and what an allocator holds back between two tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from math import prod
from typing import Any, cast

import torch
from torch import Tensor

from gym_core import Recipe
from gym_core.component import construct
from gym_optim.config import AdamW
from gym_optim.kinds import Optimizer
from gym_plan.repeated_layers import left_out
from gym_plan.shared_rows import FirstOfGroup
from gym_plan.skeleton import Skeleton
from gym_plan.trace import Timeline, Trace
from gym_torch.attention.fused_attention import CHOICES
from gym_torch.batch import Batch
from gym_torch.config import torch_algorithm
from gym_torch.kinds import part
from gym_torch.model.log_probs import declared_head
from gym_torch.objective import Objective, Scores
from gym_torch.packing import Layout
from gym_torch.policy import Policy
from gym_torch.rounding import rounding


@dataclass(frozen=True)
class Memory:
    """Bytes by what they hold, at their most; not all are at their most at once, so `peak` is less than the sum."""

    weights: int
    gradients: int  #: held at once, where the optimizer lets go of some during the backward pass
    optimizer: int  #: what the optimizer declares
    activations: int  #: what the forward pass of the backbone leaves for the backward pass
    head: int  #: what the head needs beside them, forward and backward
    peak: int  #: the most at any moment of a step, from the second step on

    def to_json(self) -> dict[str, int]:
        """Return it as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Prediction:
    """What one forward and backward pass over a batch takes."""

    memory: Memory
    tokens: int  #: tokens of samples in the batch
    flops: int  #: floating-point operations, recomputation included, of all processes that share its rows


def objective_of(recipe: Recipe, layout: Layout) -> Objective[Any, Any]:
    """Return the objective of the recipe's algorithm."""
    algorithm = torch_algorithm(recipe)
    objective: Objective[Any, Any] = construct(algorithm.objective, algorithm, layout)
    return objective


def predict(recipe: Recipe, built: Skeleton, batch: Batch) -> Prediction:
    """Return the memory and the work of one batch of a recipe."""
    objective, optimizer = objective_of(recipe, built.layout), part(recipe, Optimizer) or AdamW()
    groups = [*built.groups, *(group for other in built.further for group in other.named("further"))]
    held = None if optimizer.keeps_gradients() else optimizer.gradient_bytes(groups)
    timeline = _timeline(built, objective, batch, held is not None)
    every, state = [built, *built.further], optimizer.declared_bytes(groups)
    weights, gradients = sum(each.weights for each in every), sum(each.gradients for each in every)
    peak, activations, flops = timeline.peak, _activations(timeline), timeline.flops
    for other in built.kept[1:]:
        further = _timeline(other, _States(recipe.algorithm, built.layout), batch, held is not None)
        # Computed last, it is the first to be gone back through, while the activations of the others wait.
        peak = max(activations + further.peak, peak + (other.gradients if held is None else 0))
        activations, flops = activations + _activations(further), flops + further.flops
    memory = Memory(
        weights=weights,
        gradients=gradients
        if held is None
        else held + max(4 * prod(shape) for each in every for shape in each.trained),
        optimizer=state,
        activations=activations,
        head=_head(timeline),
        # Those that stay may be the first to come.
        peak=weights + state + peak + (held or 0),
    )
    return Prediction(memory, batch.size, flops * built.sharing)


class _States(Objective[Any, Any]):
    """Learns from the last hidden states alone, as a critic does."""

    def loss(self, policy: Scores[Any], batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return their sum."""
        own = cast(Policy[Any], policy)
        with rounding(batch.tokens.device, own.precision):
            return own.hidden(batch).float().sum(), {}


def _timeline(built: Skeleton, objective: Objective[Any, Any], batch: Batch, passing: bool) -> Timeline:
    """Return what one forward and backward pass through all layers does."""
    trace = partial(_trace, built, objective, built.lend(batch), passing)
    timeline = trace()
    if built.repeat.times:
        with left_out(built.model, built.repeat.numbers(1)):
            timeline = trace().extended(timeline, built.repeat.times)
    return timeline


def _trace(built: Skeleton, objective: Objective[Any, Any], batch: Batch, passing: bool) -> Timeline:
    """Do one forward and backward pass, as the loop does it; where gradients are `passing`, each goes when it is there."""
    model, trace = built.model, Trace()
    with built.mode:
        with built.device:
            auxiliary = objective.auxiliary_modules(model)
        policy = objective.policy(model, built.precision, declared_head(model), auxiliary=auxiliary)
        policy.context = FirstOfGroup(built.sharing) if built.sharing > 1 else None
        trace.ignore([*policy.parameters(), *policy.buffers()])
        hooks = [
            weight.register_post_accumulate_grad_hook(_let_go)
            for weight in policy.parameters()
            if passing and weight.requires_grad
        ]
        trace.ignore(value for value in vars(batch).values() if isinstance(value, Tensor))
        # A trial of attention at the sizes of a large model takes longer than all of its plan.
        untried = CHOICES.untried() if CHOICES.always is None else nullcontext()
        with untried, trace, _marking(model.base_model, trace):
            loss, metrics = objective.loss(policy, batch)
            (loss * 1.0).backward()  # type: ignore[no-untyped-call]
            policy.zero_grad()
            del loss, metrics
        for hook in hooks:
            hook.remove()
    return trace.timeline()


def _let_go(weight: Tensor) -> None:
    weight.grad = None


@contextmanager
def _marking(backbone: torch.nn.Module, trace: Trace) -> Iterator[None]:
    """Mark where the backbone is entered and left, and where the gradient comes back to it."""

    def left(module: torch.nn.Module, args: Any, output: Any) -> None:
        trace.mark("left")
        if output[0].requires_grad:
            output[0].register_hook(lambda gradient: trace.mark("back"))

    hooks = [
        backbone.register_forward_pre_hook(lambda *_: trace.mark("entered")),
        backbone.register_forward_hook(left),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _activations(timeline: Timeline) -> int:
    """Return what is live when the backbone is left for the last time."""
    return int(timeline.live[timeline.last("left") - 1])


def _head(timeline: Timeline) -> int:
    """Return how much more is live at most until the gradient is back at the backbone."""
    back = min((number for name, number in timeline.marks if name == "back"), default=None)
    if back is None:  # a loss of states before the last ones: nothing goes through a head
        return 0
    left = timeline.last("left")
    return max(0, int(timeline.live[left:back].max()) - _activations(timeline))
