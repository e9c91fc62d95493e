"""An algorithm that trains a head beside the model: what stands next, read off the state as a number."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from gym_torch_bench import VOCABULARY, Memory, make_run, train
from torch import Tensor
from transformers import PreTrainedModel

from gym_torch import FSDP, TorchAlgorithm
from gym_torch.auxiliary_module import AuxiliaryModule
from gym_torch.batch import Batch
from gym_torch.metrics import Metrics
from gym_torch.model.scalar_head import ScalarHead
from gym_torch.objective import Objective, Scores
from gym_torch.policy import Policy
from gym_torch.rounding import rounding


class Guesses(Policy):
    def forward(self, batch: Batch) -> Tensor:
        with rounding(batch.tokens.device, self.precision):
            return cast(ScalarHead, self.auxiliary["head"])(self.hidden(batch))


class SquaredError(Objective[Batch]):
    policy: ClassVar[type[Policy[Any]]] = Guesses

    def auxiliary_modules(self, model: PreTrainedModel) -> Mapping[str, AuxiliaryModule]:
        return {"head": ScalarHead.of(model)}

    def loss(self, policy: Scores[Batch], batch: Batch) -> tuple[Tensor, Metrics]:
        return (policy(batch) - batch.targets / VOCABULARY).square().sum(), {}


class Guessing(TorchAlgorithm):
    """The next token as a number."""

    objective: ClassVar[str] = "gym_torch_heads:SquaredError"


def shared(rank: int, model: Path, output: Path, port: int, settings: dict[str, Any]) -> None:
    """Be one of two processes that share a run in shards."""
    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    run = make_run(model, output / str(rank), Memory(), Guessing(), sections={"distributed": FSDP()}, **settings)
    assert run.recipe.distributed is not None
    run.ranks = run.recipe.distributed.build(output=output)
    with run.ranks:
        train(run)
