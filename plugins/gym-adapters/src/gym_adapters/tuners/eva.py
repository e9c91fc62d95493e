"""EVA (arXiv:2410.07170): A begins as the directions in which a layer's inputs vary most, in the first step; B is zero.

All layers keep the same rank (the paper's rho = 1), so that what trains does not depend on the data.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gym_adapters.config.eva import EVA
from gym_adapters.tuners.lora import LoraAdapter
from gym_core import GymError
from gym_torch.batch import Batch
from gym_torch.trained_part import FirstStepBatch

KEPT = 4  #: directions kept from batch to batch, times the rank: later batches may put others before the first


class EvaAdapter(LoraAdapter[EVA]):
    """A low-rank update that looks at the inputs of its layer where there is most to see."""

    target_types: ClassVar[tuple[type[nn.Module], ...]] = (nn.Linear,)
    initializes: ClassVar[bool] = True

    def low_rank(self) -> None:
        """Return None: its first values follow from the batches of the first step."""

    @torch.no_grad()
    def initialize(self, first_step: Iterable[FirstStepBatch] = ()) -> None:
        """Run the batches through the model and find the right singular vectors of what goes into each layer."""
        seen, layers = _Seen(KEPT * self.config.rank), self.layers()
        for (
            batch,
            loss,
        ) in first_step:  # on the way to a batch the model may be asked for answers, which is not looked at
            seen.batch = batch
            hooks = [layer.register_forward_pre_hook(partial(seen.look, name)) for name, layer in layers.items()]
            try:
                loss()
            finally:
                for hook in hooks:
                    hook.remove()
        for name, layer in layers.items():
            rows = seen.rows.get(name, torch.empty(0))
            if len(rows) < self.config.rank:
                raise GymError(
                    f"the inputs of {name} in the first step have {len(rows)} directions, fewer than the rank",
                    key="adapter.rank",
                    fix=f"set a rank of at most {len(rows)}, or a larger train.batch_size",
                )
            layer.lora_A["default"].weight.copy_(nn.functional.normalize(rows[: self.config.rank], dim=1))


class _Seen:
    """What went into layers: right singular vectors as rows, each as long as its singular value."""

    batch: Batch  #: what the model is looking at

    def __init__(self, kept: int) -> None:
        """Keep so many rows for each layer."""
        self.kept, self.rows = kept, dict[str, Tensor]()
        self._last: tuple[Any, Tensor] = (None, torch.empty(0))  # layers beside one another are given the same inputs

    def look(self, name: str, layer: nn.Module, given: tuple[Any, ...]) -> None:
        """Add the inputs of a layer, those of tokens that are no padding."""
        inputs: Tensor = given[0]
        if inputs is not self._last[0]:
            rows = inputs.flatten(0, -2).float()
            if inputs.shape[:-1] == self.batch.tokens.shape:
                rows = rows[_real(self.batch)]
            self._last = inputs, self._leading(torch.cat([self.rows[name], rows]) if name in self.rows else rows)
        self.rows[name] = self._last[1]

    def _leading(self, rows: Tensor) -> Tensor:
        _, s, vh = torch.linalg.svd(rows, full_matrices=False)
        some = s > s[0] * 1e-6
        return (s[:, None] * vh)[some][: self.kept]


def _real(batch: Batch) -> Tensor:
    """Return the flat positions of the tokens that are no padding."""
    width = batch.tokens.shape[1]
    spans = [torch.arange(each.row * width + each.start, each.row * width + each.stop) for each in batch.segments]
    return torch.cat(spans).to(batch.tokens.device)
