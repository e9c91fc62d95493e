"""Which library multiplies by the frozen weights of a run in fp32: settled before the first step, and kept by the run."""

from __future__ import annotations

from torch import nn

from gym_core import Run
from gym_torch.console import say
from gym_torch.kernels import onednn_linear
from gym_torch.kinds import Adapter, part
from gym_torch.model.adapted import AdaptedModel

RECORD = "frozen_products"  #: in the record of a run: whether oneDNN computes them


def speed_up_where_it_pays(run: Run, model: nn.Module, adapted: AdaptedModel, bf16: bool) -> None:
    """Have the frozen linear layers of a model compute by oneDNN, where that pays; a resumed run does as it did before.

    Only below an adapter that is nothing but low-rank updates and begins as nothing: its policy is its own reference, so both are
    rounded alike. Layers that are compiled later compute by torch from then on.
    """
    adapter, told = part(run.recipe, Adapter), run.record.read()
    if bf16 or adapter is None or not adapter.starts_unchanged or adapted.low_rank() is None:
        return
    found = below(model, adapted)
    chosen = told.get(RECORD) if run.resuming else None
    if chosen is None:
        chosen = onednn_linear.pays(min((layer.in_features for layer in found), default=0))
    run.record.update(**{RECORD: chosen})
    if chosen:
        say("products with frozen weights: by oneDNN, which is faster here")
        onednn_linear.speed_up(found)


def below(model: nn.Module, adapted: AdaptedModel) -> list[nn.Linear]:
    """Return the frozen linear layers but for the head, by whose weight `gym_torch.model.linear_head` multiplies."""
    head = adapted.model.get_output_embeddings()
    return [layer for layer in onednn_linear.frozen(model) if layer is not head]
