"""The trainer of preferences, which measures the policy on a whole step before it is learnt from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, cast

from gym_core import Run
from gym_core.component import load_object
from gym_data.cache import Judged
from gym_preference.trainer import PreferenceTrainer
from gym_preference.unpaired.config import Judging
from gym_preference.unpaired.kl_baseline import Origin
from gym_preference.unpaired.objective import JudgedObjective
from gym_preference.unpaired.source import HeldOutAnswers, JudgedSteps
from gym_torch.console import warn
from gym_torch.distributed.collectives import over_processes
from gym_torch.loop.job import Evaluation
from gym_torch.model.loading import LoadedModel
from gym_torch.packing import Ints, Layout
from gym_torch.reference import Scorer
from gym_torch.source import Dataset, Examples, Source, share


class JudgedTrainer(PreferenceTrainer):
    """Trains on answers that were judged one by one."""

    config: Judging
    chosen: ClassVar[str] = "logps/chosen"

    def __init__(self, config: Judging, run: Run, model: LoadedModel) -> None:
        """Prepare the data and the reference."""
        super().__init__(config, run, model)
        judged = cast(Sequence[Judged], self.data.train)
        good = sum(one.good for one in judged)
        advice = config.advice(good, len(judged) - good)
        if advice:
            warn(advice)

    def source(self, layout: Layout) -> Source:
        """Return the steps over the prepared answers."""
        data, train = self.data, self.train_options
        self.origin: Origin = load_object(type(self.config).origin)(data.train, train.seed)
        return JudgedSteps(Dataset(data.train, train, data.fingerprint, layout), self.origin, self._measure)

    def evaluation(self, examples: Examples, layout: Layout) -> Evaluation:
        """Return what measures the policy on answers that are held out."""
        train = self.train_options
        self.held_out = self.origin.held_out(examples, train.seed)
        return HeldOutAnswers(examples, train, layout, self.held_out, self._measure)

    @property
    def order(self) -> Dataset:
        """The samples of each step."""
        return cast(JudgedSteps, self.job.source).order

    def asked(self) -> Iterator[tuple[Examples, Ints]]:
        """Add what the policy is measured on."""
        for examples, used in super().asked():
            yield examples, used
            measured = (self.origin if examples is self.data.train else self.held_out).measured
            if measured is not None and measured is not examples:
                yield measured, used

    def _measure(self, measured: Examples | None, chosen: Ints) -> tuple[float, float]:
        """Return the sum of the log-ratios of answers, over all processes, and how many they are."""
        if measured is None:
            return 0.0, 0.0
        objective = cast(JudgedObjective, self.objective)
        step = share(measured, chosen, self.train_options, self.model.layout, *self._place, 0.0)
        found = objective.total(Scorer(self.policy), step, self.accelerator.device)
        total, count = over_processes(self.accelerator, found)
        return total, count

    @property
    def _place(self) -> tuple[int, int]:
        return self.accelerator.process_index, self.accelerator.num_processes
