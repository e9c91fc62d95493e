"""What learning from labelled responses contributes to a run: the policy is measured on a whole step before it is trained on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gym_core.component import construct
from gym_data.examples import UnpairedExample
from gym_preference.precompute_ref_log_probs import Used
from gym_preference.training_setup import likelihood_watch, referred, used
from gym_preference.unpaired.config.base import UnpairedPreference
from gym_preference.unpaired.evaluation import UnpairedEvaluation
from gym_preference.unpaired.objective import UnpairedObjective
from gym_preference.unpaired.reference_point import ReferencePoint
from gym_preference.unpaired.reference_point_per_step import UnpairedSource
from gym_torch.console import warn
from gym_torch.contribution import Contribution, Parts, dataset
from gym_torch.distributed.collectives import over_processes
from gym_torch.following_reference import followed
from gym_torch.packing import Ints
from gym_torch.policy import Policy
from gym_torch.reference import Scorer
from gym_torch.source import Examples, share


def unpaired(parts: Parts[UnpairedPreference, UnpairedObjective, Policy[Any], UnpairedExample]) -> Contribution:
    """Return labelled responses, with what their log-ratios are measured from in training and in evaluation."""
    examples, validation, seed = parts.data.train, parts.data.validation, parts.train.seed
    order = dataset(parts)
    reference_point: ReferencePoint = construct(type(parts.config).reference_point, examples, seed)
    held_out = reference_point.held_out(validation, seed) if validation else None

    def measure(measured: Examples[UnpairedExample] | None, chosen: Ints) -> tuple[float, float]:
        """Return the sum of the log-ratios of responses, over all processes, and how many they are."""
        if measured is None:
            return 0.0, 0.0
        step = share(measured, chosen, parts.train, parts.layout, parts.rank, parts.world, 0.0)
        found = parts.objective.total(Scorer(parts.policy), step, parts.accelerator.device)
        total, count = over_processes(parts.accelerator, found)
        return total, count

    def asked() -> Iterable[Used]:
        """Add what the policy is measured on to what is trained on and evaluated on."""
        for (samples, places), mine in zip(used(parts, order), (reference_point, held_out), strict=False):
            yield samples, places
            measured = mine.measured if mine else None
            if measured is not None and measured is not samples:
                yield measured, places

    evaluation = None
    if validation and held_out:
        evaluation = UnpairedEvaluation(validation, parts.train, parts.layout, held_out, measure)
    advise(parts.config, examples)
    source = followed(parts, UnpairedSource(order, reference_point, measure))
    after = referred(parts, order, asked)
    return Contribution(parts.objective, source, evaluation, [likelihood_watch(parts.config)], after_resume=after)


def advise(config: UnpairedPreference, examples: Examples[UnpairedExample]) -> None:
    """Say what the algorithm advises for so many good and bad responses."""
    desirable = sum(examples[number].desirable for number in range(len(examples)))
    advice = config.advice(desirable, len(examples) - desirable)
    if advice:
        warn(advice)
