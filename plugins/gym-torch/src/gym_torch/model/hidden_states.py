"""What a model makes of a batch: the hidden states that its output embeddings, or a head of numbers, are given.

Most families have a backbone that ends there. Others do more before their output embeddings; those are run as a whole, up to that
point.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from threading import get_ident
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gym_core import GymError
from gym_torch.attention.context_parallel import KEY, ContextGroup
from gym_torch.attention.segment_attention import NO_MASK
from gym_torch.batch import Batch

Around = Callable[[Batch], AbstractContextManager[None]]


def hidden_states(
    model: PreTrainedModel, batch: Batch, places: Tensor | None = None, around: Around = lambda batch: nullcontext()
) -> Tensor:
    """Return the last hidden states `[n, dim]` at flat `places` `[n]`, by default those that predict `batch.targets`.

    Each pass through the model is within `around` of what it computes: the batch, or one row of it after another where those
    are computed apart.
    """
    chosen = batch.target_index if places is None else places
    if batch.inputs and not batch.apart:
        raise GymError("samples with more than tokens are computed one by one, and these are not", key="data")
    if not batch.apart:
        with around(batch):
            return _run(model, batch).flatten(0, 1)[chosen]
    found, starts, start = [], [], 0
    for row in batch.rows():
        with around(row):
            found.append(_run(model, row)[0])
        starts.append(start)
        start += len(found[-1])
    width = batch.tokens.shape[1]
    return torch.cat(found)[torch.tensor(starts, device=chosen.device)[chosen // width] + chosen % width]


def shared_states(
    model: PreTrainedModel, batch: Batch, places: Tensor, context: ContextGroup, around: Around
) -> Tensor:
    """Return the last hidden states `[k, dim]` at flat `places` `[k]`, all of them this process's, of a row that is shared.

    Raises GymError where the batch is no packed row.
    """
    if batch.spans is None:
        raise GymError("rows that are not packed cannot be shared by processes", key=KEY, fix=f"leave {KEY} out")
    with around(batch):
        return _run(model, batch, context)[0][places // context.size]


def backbone_states(model: PreTrainedModel, **given: Any) -> Tensor:
    """Return the hidden states `[rows, length, dim]` of `input_ids` and what else the model is given."""
    if type(model) in _WHOLE or model.base_model is model:
        return _up_to_the_head(model, **given)
    return cast(Tensor, model.base_model(**given, **no_cache(type(model.base_model).forward)).last_hidden_state)


def take_whole(kind: type[PreTrainedModel]) -> None:
    """From now on take the states of models of this class from where their output embeddings get them."""
    _WHOLE.add(kind)


#: Classes that do more between the end of the backbone and the output embeddings.
_WHOLE: set[type[PreTrainedModel]] = set()


class _ReachedError(Exception):
    """Ends a pass through a model, with what its output embeddings were given."""


def _up_to_the_head(model: PreTrainedModel, **given: Any) -> Tensor:
    mine = get_ident()

    def reached(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if get_ident() == mine:  # others may decode with the model meanwhile
            raise _ReachedError(inputs[0])

    hook = model.get_output_embeddings().register_forward_pre_hook(reached)
    try:
        model(**given, **no_cache(type(model).forward))
    except _ReachedError as found:
        states: Tensor = found.args[0]
        return states
    finally:
        hook.remove()
    raise GymError(f"{type(model).__name__} does not use its output embeddings", key="model.path")


@cache
def no_cache(forward: Callable[..., Any]) -> dict[str, bool]:
    """Return what keeps a model from filling a cache, where its `forward`, as its class has it, takes that."""
    options = inspect.signature(forward).parameters
    takes = "use_cache" in options or any(option.kind is option.VAR_KEYWORD for option in options.values())
    return {"use_cache": False} if takes else {}


def _run(model: PreTrainedModel, batch: Batch, context: ContextGroup | None = None) -> Tensor:
    given: dict[str, Any] = {"input_ids": batch.tokens}
    if batch.spans is not None:
        given |= {"position_ids": batch.positions}
    if batch.experts is not None:
        given["experts"] = batch.experts
    for inputs in batch.inputs:
        given |= inputs
    if context is not None:
        given = {name: context.part(whole) for name, whole in given.items()} | {"context": context}
    if batch.spans is not None:
        given |= {"spans": batch.spans, "attention_mask": NO_MASK}
    states = backbone_states(model, **given)
    if torch.is_grad_enabled() and not states.requires_grad and model.training:
        # Text without images does not come to a vision tower, the one part that trains: its gradient is none, and no error.
        states.requires_grad_()
    return states
