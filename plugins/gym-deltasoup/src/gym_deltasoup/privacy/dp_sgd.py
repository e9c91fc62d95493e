"""Private records: a contributor trains so that what it sends tells little of any one row of its own data (DP-SGD, by opacus)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from opacus.validators import ModuleValidator
from torch import Tensor, nn
from torch.utils.data import default_collate

from gym_core import GymError
from gym_deltasoup.privacy.ledger import PrivacyLedger
from gym_deltasoup.privacy.subsampled import mu_of_training

SLACK = 1e-3  #: part of the delta of a ledger that a training may use up


@dataclass(frozen=True)
class RecordPrivacy:
    """How records are hidden. Raises GymError for noise and cuts that hide nothing."""

    batch: int  #: rows of a batch on average: each row is in one with a probability of `batch / rows`
    steps: int
    noise: float  #: standard deviation of the noise on the sum of the gradients of a batch, in `clip`
    clip: float = 1.0  #: norm that the gradient of each row is cut to

    def __post_init__(self) -> None:
        """Check what is known without rows."""
        for key, least in (("batch", 1), ("steps", 1), ("noise", 0), ("clip", 0)):
            value = getattr(self, key)
            if not (least <= value < inf and value):
                fix = f"give a finite number {'above 0' if least == 0 else 'from 1 on'}"
                raise GymError(f"{key} is {value}, and nothing would be hidden so", key=key, fix=fix)


def train_on_records(
    model: nn.Module,
    rows: Sequence[Any],
    loss: Callable[[nn.Module, Any], Tensor],
    optimizer: torch.optim.Optimizer,
    privacy: RecordPrivacy,
    *,
    ledger: PrivacyLedger,
    member: str,
    release: str,
    collate: Callable[[list[Any]], Any] | None = None,
) -> float:
    """Train a model in place and return the epsilon that the member has spent by now; it is charged before the first step.

    Each row is in a batch with a probability of `batch / rows`, drawn by itself: batches have other sizes each time, and one
    without rows is a step of noise alone. Of a row whose gradient is not finite the numbers that are not count as zero: else
    all weights would say that it is there. Neighbours differ in one row that is there or not. It says nothing of who contributed:
    that is `differential_privacy`, or `privatize`, which may be charged to the same ledger. Noise comes from the generator of
    torch, which is not cryptographic.

    Args:
        model: what is trained: of its weights those that require gradients, such as an adapter's.
        rows: the records.
        loss: given the model and a batch, the mean loss over its rows, which must not look at each other.
        optimizer: over the weights that are trained.
        privacy: batches, steps and noise.
        ledger: of what has been spent.
        member: whose account is charged.
        release: what the ledger calls this training. Each call is charged, also under one name: its noise is another one.
        collate: makes a batch of rows; by default torch's.

    Raises GymError where the cap would be exceeded, the rows are fewer than a batch, or opacus cannot tell what a single row
    does, as where a layer normalizes over a batch.

    """
    if privacy.batch > len(rows):
        raise GymError(f"there are {len(rows)} rows, and a batch has {privacy.batch}", key="batch")
    model.train()
    for why in ModuleValidator.validate(model):
        raise GymError(f"rows of this model cannot be told apart: {why}", key="model")
    slack, rate = SLACK * ledger.delta, privacy.batch / len(rows)
    mu = mu_of_training(privacy.noise, rate, privacy.steps, slack)
    spent = ledger.spend_anew(release, member, mu, slack)
    private = GradSampleModule(model)
    private.forbid_grad_accumulation()
    stepping = DPOptimizer(
        optimizer,
        noise_multiplier=privacy.noise,
        max_grad_norm=privacy.clip,
        expected_batch_size=privacy.batch,
    )
    for chosen in _drawn(len(rows), rate, privacy.steps):
        stepping.zero_grad()
        if chosen:
            loss(private, (collate or default_collate)([rows[number] for number in chosen])).backward()
        for weight in stepping.params:
            each = weight.grad_sample  # of each row, and None where nothing came to this weight
            each = weight.new_zeros(len(chosen), *weight.shape) if each is None else each
            weight.grad_sample = torch.nan_to_num(each, 0.0, 0.0, 0.0)
        stepping.step()
    private.remove_hooks()
    private.to_standard_module()
    return spent


def _drawn(rows: int, rate: float, steps: int) -> Iterator[list[int]]:
    """Yield which rows are in each batch: in fp64, where a rate is hardly rounded."""
    for _ in range(steps):
        yield (torch.rand(rows, dtype=torch.float64) < rate).nonzero().flatten().tolist()
