"""The reference of a run: asked for each batch, or once for all answers before training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
from accelerate.utils import gather_object

from gym_core import GymError, Run, cache_dir
from gym_data.makers import identity
from gym_preference.config import WithReference
from gym_preference.objective import PreferenceObjective
from gym_preference.reference_cache import CachedLogProbs, fingerprint, key_of, name_of
from gym_torch.console import say
from gym_torch.loop.job import Job
from gym_torch.model.adapted import AdaptedModel
from gym_torch.model.loading import LoadedModel
from gym_torch.model.precision_probe import device_name
from gym_torch.policy import Policy
from gym_torch.reference import Scorer, left_out, reference
from gym_torch.source import Step

T = TypeVar("T")
Score = tuple[bytes, npt.NDArray[np.float32]]  #: `key_of` and log-probabilities of an example
WEIGHTS = "reference_weights"  #: in `run.json`, what names the weights of a reference that was asked before training


@dataclass(frozen=True)
class ReferenceScoring:
    """What a reference is made from."""

    config: WithReference
    run: Run
    model: LoadedModel
    adapted: AdaptedModel
    policy: Policy[Any]
    job: Job
    changed: bool  #: whether the policy has been trained already
    again: bool  #: whether answers come more than once

    @property
    def without(self) -> Callable[[], AbstractContextManager[None]] | None:
        """What makes the policy its own reference."""
        return left_out(self.adapted, self.run.recipe)

    def begin(self, answers: Callable[[], Sequence[Step]]) -> None:
        """Tell the objective what the reference says.

        `answers` are this process's part of all that will be asked about. Raises GymError where the reference is not the one
        that the run began with.
        """
        objective = cast(PreferenceObjective, self.job.objective)
        asked, further = self.config.precompute_ref_log_probs, self.config.ref_model or not self.without
        if (further or self.again) if asked == "auto" else asked:
            objective.cached_log_probs, objective.reference = self._kept(objective, answers()), None
        else:
            objective.reference = self._scorer()

    def _scorer(self) -> Scorer:
        return reference(self.policy, self.adapted, self.model, self.run, self.config.ref_model)

    def _own(self) -> Scorer | None:
        """Return the policy as the reference; None where it is another model, or no longer what it was."""
        without = self.without
        if self.config.ref_model is not None or (self.changed and not without):
            return None
        return Scorer(self.policy, without or nullcontext)

    def _again(self) -> Scorer:
        """Return the reference, loaded once more: a copy of the model holds weights as the policy does, and says the same."""
        scorer = self._scorer()
        if self.config.ref_model is None:
            for own, copied in zip(self.policy.model.parameters(), scorer.policy.model.parameters(), strict=True):
                copied.data = copied.data.to(own.dtype)
        return scorer

    def _kept(self, objective: PreferenceObjective, steps: Sequence[Step]) -> CachedLogProbs:
        """Return what the reference says of all answers: what was kept, or what it says now."""
        self.run.ranks.at("")  # it may take its time
        mine = {key_of(objective.prompt_responses(each)) for step in steps for batch in step.batches for each in batch}
        keys = sorted(set(self._together(list(mine))))
        began: str | None = self.run.record.read().get(WEIGHTS) if self.run.resuming else None
        scorer = self._own()
        if began is None or scorer is not None or not self._there(self._file(began, keys)):
            scorer = scorer or self._again()
            weights = self._fingerprint(scorer.policy)
            if began not in (None, weights):
                raise GymError(
                    "the reference is not what it was when the run began",
                    key="model" if self.config.ref_model is None else "algorithm.ref_model",
                    fix="bring the old one back, or start over in another `output`",
                )
            self.run.record.update(**{WEIGHTS: weights})
            file = self._file(weights, keys)
            if not self._there(file):
                say(f"the reference scores {len(keys):,} samples, once")
                found = dict(self._together(list(self._scored(objective, scorer, steps))))
                self.run.ranks.agree(lambda: CachedLogProbs(found).write(file, file.stem))
            began = weights
        file = self._file(began, keys)
        return CachedLogProbs.read(file)

    def _there(self, file: Path) -> bool:
        return self.run.ranks.agree(lambda: CachedLogProbs.there(file, file.stem))

    def _scored(self, objective: PreferenceObjective, scorer: Scorer, steps: Sequence[Step]) -> Iterator[Score]:
        """Yield key and log-probabilities of each example of this process; all processes work on as many batches."""
        for step in steps:
            for examples in step.batches:
                batch = objective.collate(examples)
                lengths = iter(batch.lengths.long().tolist())
                scores = scorer(batch.to(self.job.accelerator.device)).cpu().numpy()
                for each in map(objective.prompt_responses, examples):
                    size = sum(next(lengths) for _ in each.responses)
                    yield key_of(each), scores[:size]
                    scores = scores[size:]

    def _file(self, weights: str, keys: Sequence[bytes]) -> Path:
        # How answers are cut into batches changes the last bits: a run is then what its recipe says, whoever ran before.
        train, world = self.job.train, self.job.accelerator.num_processes
        how: list[Any] = [self.model.precision, self.model.layout.name, train.batch_size, train.batch_tokens, world]
        how += [device_name(), self.policy.head.temperature]
        if self.without is None and self.run.recipe.adapter:  # it computes a part of what the reference says
            how.append(identity(self.run.recipe.adapter))
        name = name_of(weights, how, keys)
        return cache_dir() / "reference" / f"{name}.safetensors"

    def _fingerprint(self, policy: Policy[Any]) -> str:
        """Name the model that the reference is: without an adapter that is left out."""
        own = self.without is not None
        weights = (weight for weight in policy.model.parameters() if not (own and weight.requires_grad))
        return fingerprint(map(self.job.spread.full, weights), policy.model.config)

    def _together(self, values: list[T]) -> list[T]:
        found: list[T] = gather_object(values) if self.job.accelerator.num_processes > 1 else values
        return found
