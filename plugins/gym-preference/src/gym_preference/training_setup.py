"""What preference learning contributes to a run: its reference, in every step or once before the first, and a watch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from gym_preference.config import PreferenceAlgorithm
from gym_preference.likelihood_displacement import LikelihoodDisplacement
from gym_preference.objective import PreferenceObjective
from gym_preference.precompute_ref_log_probs import ReferenceLogProbs, Used
from gym_torch.contribution import Contribution, Parts, dataset, held_out_loss, samples
from gym_torch.following_reference import followed
from gym_torch.loop.job import Job
from gym_torch.loop.prepared_data import streams
from gym_torch.observer import Observer
from gym_torch.policy import Policy
from gym_torch.source import Dataset


def preferences(parts: Parts[PreferenceAlgorithm, PreferenceObjective[Any], Policy[Any]]) -> Contribution:
    """Return pairs, measured against a reference where the algorithm has one."""
    watches, evaluation = [likelihood_watch(parts.config)], held_out_loss(parts)
    if streams(parts.run.recipe):  # nobody has seen them all: the reference is asked in every step
        if parts.references:
            (parts.objective.reference,) = parts.references
        return Contribution(parts.objective, followed(parts, samples(parts)), evaluation, watches)
    order = dataset(parts)
    after = referred(parts, order, lambda: used(parts, order))
    return Contribution(parts.objective, followed(parts, order), evaluation, watches, after_resume=after)


def referred(
    parts: Parts[Any, Any, Any], order: Dataset[Any], asked: Callable[[], Iterable[Used]]
) -> Callable[[Job], None]:
    """Give the objective its reference; return what has that score all samples once, where it is to, before the first step.

    `asked` are the samples that it will be asked about.
    """
    if not parts.references:
        return lambda job: None
    (reference,) = parts.references
    parts.objective.reference = reference
    return ReferenceLogProbs(parts, reference, order, asked).begin


def used(parts: Parts[Any, Any, Any], order: Dataset[Any]) -> Iterable[Used]:
    """Yield samples, and which of them the run will learn from or evaluate on."""
    yield parts.data.train, np.unique(order.samples(0, int(order.bounds[-1])))
    if parts.data.validation:
        yield parts.data.validation, np.arange(len(parts.data.validation))


def likelihood_watch(config: PreferenceAlgorithm) -> Observer:
    """Return what notices when learning makes the chosen responses unlikely too."""
    return LikelihoodDisplacement(config.ftx, any(model.follows for model in config.further()))
