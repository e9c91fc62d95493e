"""Which processes share the tokens of a row, and what must hold for that: `distributed.context_parallel_size`.

How they share them is in `gym_torch.attention.context_parallel`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import nn

from gym_core import GymError, RecipeError
from gym_torch.attention.context_parallel import KEY, ContextGroup, check_heads
from gym_torch.batch import Piece, packed
from gym_torch.distributed.ddp import Replicated
from gym_torch.model import load_balancing
from gym_torch.model.dropout import dropouts
from gym_torch.model.loading import LoadedModel
from gym_torch.model.miniature import by_length
from gym_torch.packing import PACKED
from gym_torch.policy import Policy, evaluating

LENGTHS, PREFIXES = (9, 5, 7, 2), (None, None, 1, 1)  #: of the segments that a policy is tried with
TOLERANCE = {"fp32": 1e-3, "bf16": 5e-2, "fp16": 1e-2}  #: nats, by what it computes in
LEAVE_OUT = f"leave {KEY} out"


def context_of(size: int, accelerator: Accelerator) -> ContextGroup | None:
    """Return the processes that share rows with this one, `size` of them; None for 1. Every process must ask.

    Processes that follow one another share, so that they are on one machine where that has as many.
    """
    if size == 1:
        return None
    group, _ = dist.new_subgroups(size)
    return ContextGroup(int(accelerator.process_index) % size, size, group)


def check_model(model: LoadedModel, size: int) -> None:
    """Raise RecipeError where rows of a model cannot be shared by so many processes, or not with what is asked of it besides."""
    if size == 1:
        return
    options = model.model.config.get_text_config().to_dict()
    check_heads(options.get("num_attention_heads") or size, size)
    balanced = load_balancing.wanted(model.model, model.router_aux_loss_coef)
    for found, why, key, fix in (
        (model.layout is not PACKED, f"samples are {model.layout.name}, not packed", KEY, LEAVE_OUT),
        (by_length(options), "positions follow from the length of a text, of which each has a part", KEY, LEAVE_OUT),
        (model.compile is True, "layers are not compiled there", "model.compile", "leave it out"),
        (model.neftune_noise_alpha, "its noise is that of whole samples", "model.neftune_noise_alpha", "leave it out"),
        (balanced, "the load-balancing loss is that of whole rows", "model.router_aux_loss_coef", LEAVE_OUT),
    ):
        if found:
            raise RecipeError(f"{size} processes cannot share the tokens of a row: {why}", key=key, fix=fix)


def check_dropout(model: nn.Module, size: int) -> None:
    """Raise RecipeError where chance decides in training, which would be another for each of the processes."""
    found = next(dropouts(model), None) if size > 1 else None
    if found:
        module, name = found
        raise RecipeError(
            f"{type(module).__name__} has a dropout of {getattr(module, name):g}, and {size} processes share its tokens",
            key=KEY,
            fix=f"set the dropout of model and adapter to 0, or {LEAVE_OUT}",
        )


@torch.no_grad()
def check_shared(policy: Policy[Any], spread: Replicated) -> None:
    """Raise GymError where processes that share rows find other log-probabilities than one that computes them whole.

    Every process must ask, when the policy is laid out over them.
    """
    context = spread.context
    if context is None:
        return
    batch = _few(policy)
    with evaluating(policy):
        with context.whole_rows():
            expected = policy.log_probs(batch)
        try:
            found = policy.log_probs(batch)
        except GymError:
            raise
        except Exception as error:  # the code of a family or of an adapter, called in a way that it may not know
            why = f"{type(error).__name__}: {error}".splitlines()[0][:160]
        else:
            apart = float((found - expected).abs().max())
            why = "" if apart <= TOLERANCE[policy.precision] else f"log-probabilities are {apart:.2g} nats apart"
    spread.reshard()
    if why:
        raise GymError(
            f"{context.size} processes that share rows do not compute what one does: {why}", key=KEY, fix=LEAVE_OUT
        )


def _few(policy: Policy[Any]) -> Any:
    """Return a row of a few segments, some of which continue another."""
    vocabulary = policy.model.config.get_text_config().vocab_size
    tokens = torch.arange(sum(LENGTHS)).remainder(vocabulary).int()
    pieces = [
        Piece("check", part.numpy(), torch.ones(len(part), dtype=torch.bool).numpy()) for part in tokens.split(LENGTHS)
    ]
    return packed(pieces, PREFIXES).to(next(policy.parameters()).device)
