"""Private records: a contributor trains so that what it sends tells little of any one row of its own data (DP-SGD, by opacus)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.utils.data import DataLoader

from gym_core import GymError
from gym_deltasoup.privacy.ledger import PrivacyLedger
from gym_deltasoup.privacy.subsampled import mu_of_training

SLACK = 1e-3  #: part of the delta of a ledger that a training may use up


@dataclass(frozen=True)
class RecordPrivacy:
    """How records are hidden."""

    batch: int  #: rows of a batch on average: each row is in one with a probability of `batch / rows`
    steps: int
    noise: float  #: standard deviation of the noise on the sum of the gradients of a batch, in `clip`
    clip: float = 1.0  #: norm that the gradient of each row is cut to


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

    Neighbours differ in one row that is there or not. It says nothing of who contributed: that is `differential_privacy`, or
    `privatize`, which may be charged to the same ledger. Noise comes from the generator of torch, which is not cryptographic.

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

    Raises GymError where the cap would be exceeded, or the rows are fewer than a batch.

    """
    if not 0 < privacy.batch <= len(rows):
        raise GymError(f"there are {len(rows)} rows, and a batch has {privacy.batch}", key="batch")
    slack = SLACK * ledger.delta
    loader = DataLoader(rows, batch_size=privacy.batch, collate_fn=collate)  # type: ignore[arg-type]
    engine = PrivacyEngine(accountant="prv")
    rate = 1 / len(loader)  # what opacus samples with
    mu = mu_of_training(privacy.noise, rate, privacy.steps, slack)
    spent = ledger.spend_anew(release, member, mu, slack)
    model.train()
    private, stepping, batches = engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=privacy.noise,
        max_grad_norm=privacy.clip,
    )
    done = 0
    while done < privacy.steps:
        for batch in batches:
            stepping.zero_grad()
            loss(private, batch).backward()
            stepping.step()
            done += 1
            if done == privacy.steps:
                break
    private.remove_hooks()
    private.to_standard_module()
    return spent
