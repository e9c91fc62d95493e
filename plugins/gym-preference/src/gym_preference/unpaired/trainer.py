"""The trainer of preferences, which measures the policy on a whole step before it is learnt from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, cast

from gym_core import Run
from gym_core.component import load_object
from gym_data.cache import UnpairedExample
from gym_preference.trainer import PreferenceTrainer
from gym_preference.unpaired.config import UnpairedPreference
from gym_preference.unpaired.kl_baseline import Baseline
from gym_preference.unpaired.objective import UnpairedObjective
from gym_preference.unpaired.source import UnpairedEvaluation, UnpairedSource
from gym_torch.console import warn
from gym_torch.distributed.collectives import over_processes
from gym_torch.loop.job import Evaluation
from gym_torch.model.loading import LoadedModel
from gym_torch.packing import Ints, Layout
from gym_torch.reference import Scorer
from gym_torch.source import Dataset, Examples, Source, share


class UnpairedTrainer(PreferenceTrainer):
    """Trains on answers that were judged one by one."""

    config: UnpairedPreference
    chosen: ClassVar[str] = "logps/chosen"

    def __init__(self, config: UnpairedPreference, run: Run, model: LoadedModel) -> None:
        """Prepare the data and the reference."""
        super().__init__(config, run, model)
        judged = cast(Sequence[UnpairedExample], self.data.train)
        desirable = sum(one.desirable for one in judged)
        advice = config.advice(desirable, len(judged) - desirable)
        if advice:
            warn(advice)

    def source(self, layout: Layout) -> Source:
        """Return the steps over the prepared answers."""
        data, train = self.data, self.train_options
        self.baseline: Baseline = load_object(type(self.config).baseline)(data.train, train.seed)
        return UnpairedSource(Dataset(data.train, train, data.fingerprint, layout), self.baseline, self._measure)

    def evaluation(self, examples: Examples, layout: Layout) -> Evaluation:
        """Return what measures the policy on answers that are held out."""
        train = self.train_options
        self.held_out = self.baseline.held_out(examples, train.seed)
        return UnpairedEvaluation(examples, train, layout, self.held_out, self._measure)

    @property
    def order(self) -> Dataset:
        """The samples of each step."""
        return cast(UnpairedSource, self.job.source).order

    def asked(self) -> Iterator[tuple[Examples, Ints]]:
        """Add what the policy is measured on."""
        for examples, used in super().asked():
            yield examples, used
            measured = (self.baseline if examples is self.data.train else self.held_out).measured
            if measured is not None and measured is not examples:
                yield measured, used

    def _measure(self, measured: Examples | None, chosen: Ints) -> tuple[float, float]:
        """Return the sum of the log-ratios of answers, over all processes, and how many they are."""
        if measured is None:
            return 0.0, 0.0
        objective = cast(UnpairedObjective, self.objective)
        step = share(measured, chosen, self.train_options, self.model.layout, *self._place, 0.0)
        found = objective.total(Scorer(self.policy), step, self.accelerator.device)
        total, count = over_processes(self.accelerator, found)
        return total, count

    @property
    def _place(self) -> tuple[int, int]:
        return self.accelerator.process_index, self.accelerator.num_processes
