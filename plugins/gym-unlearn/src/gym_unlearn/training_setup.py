"""What unlearning contributes to a run: steps with rows to forget and rows to keep, its reference, and a measure of both."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from gym_core import Artifact, DataError
from gym_core.component import construct
from gym_data.examples import UnpairedExample
from gym_data.provenance import name_of
from gym_preference.precompute_ref_log_probs import ReferenceLogProbs, Used
from gym_torch.console import say
from gym_torch.contribution import Contribution, Parts
from gym_torch.loop.evaluation import HeldOutLoss
from gym_torch.loop.job import Job
from gym_torch.loop.prepared_data import steps_end_with_epochs
from gym_torch.observer import Observer, Progress
from gym_torch.source import Examples, once
from gym_unlearn.config import Unlearning
from gym_unlearn.samples import kept, with_shares
from gym_unlearn.steps import ForgetRetainSteps

FORGET = "sources: [{name: forget, source: forget.jsonl}, {name: retain, source: retain.jsonl}]"


def unlearning(parts: Parts[Unlearning, Any, Any, UnpairedExample]) -> Contribution:
    """Return the steps, and the reference where there is one. Raises DataError where rows of a kind are missing."""
    whole = steps_end_with_epochs(parts.run.recipe)
    known = parts.data.fingerprint, parts.layout, whole
    steps: ForgetRetainSteps = construct(
        type(parts.config).dataset, parts.config, parts.data.train, parts.train, *known
    )
    _check(parts.config, steps)
    parts.objective.check(parts.adapted.model)
    after, evaluation = _nothing, _evaluation(parts)
    if parts.references:
        (reference,) = parts.references
        if parts.config.compares():
            parts.policy.reference = reference
        else:
            parts.objective.reference = reference

            def asked() -> Iterable[Used]:
                """Yield the rows to forget that the run will learn from or evaluate on."""
                yield parts.data.train, np.unique(steps.chosen(0, int(steps.bounds[-1]))[0])
                held_out = parts.data.validation
                if held_out:
                    yield held_out, np.array([n for n in range(len(held_out)) if not held_out[n].desirable], dtype=int)

            after = ReferenceLogProbs(parts, reference, steps.order, asked).begin
    return Contribution(parts.objective, steps, evaluation, [Advice(str(parts.run.output))], after_resume=after)


def _nothing(job: Job) -> None:
    """Do nothing."""


def _check(config: Unlearning, steps: ForgetRetainSteps) -> None:
    name = f"`{name_of(config)}`"
    if not len(steps.forget):
        raise DataError(
            f"no row is to be forgotten, so {name} has nothing to do",
            key="data",
            fix=f"say which rows are: {FORGET}; or by a column: `label: false`",
        )
    if config.drawn_per_forget() and not len(steps.keep):
        raise DataError(
            f"no row is to be kept, and {name} holds on to the model by such rows",
            key="data",
            fix=f"add some: {FORGET}; or by a column: `label: true`; without any there is `gradient_ascent`",
        )
    if len(steps.keep) and not config.drawn_per_forget():
        say(f"{len(steps.keep):,} rows are to be kept, and {name} trains on none of them: the report measures them")


def _evaluation(parts: Parts[Any, Any, Any, UnpairedExample]) -> HeldOutLoss | None:
    held_out: Examples[UnpairedExample] | None = parts.data.validation
    if not held_out:
        return None
    keep = kept([held_out[number] for number in range(len(held_out))])
    step = once(held_out, parts.train, parts.layout, parts.rank, parts.world)
    return HeldOutLoss(with_shares(step, keep, len(held_out) - keep))


class Advice(Observer):
    """Says what measures the result."""

    def __init__(self, output: str) -> None:
        """Take the folder of the run."""
        self.output = output

    def ended(self, progress: Progress, artifact: Artifact) -> None:
        """Say it."""
        say(f"what was forgotten and what was kept: gym unlearn report {self.output}")
