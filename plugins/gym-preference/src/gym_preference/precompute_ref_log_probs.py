"""The reference of a run: asked for each batch, or once for all responses before training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gym_core import GymError, cache_dir
from gym_data.provenance import identity
from gym_preference.objective import ReferencedObjective
from gym_preference.reference_cache import CachedLogProbs, fingerprint, key_of, name_of
from gym_torch.console import say
from gym_torch.contribution import Parts
from gym_torch.distributed.collectives import gathered
from gym_torch.kernels.precision_probe import device_name
from gym_torch.kinds import LoadTimeQuantizer, TorchBackend, part
from gym_torch.loop.job import Job
from gym_torch.packing import Ints
from gym_torch.policy import Policy
from gym_torch.quantization.weights import stored_modules
from gym_torch.reference import Reference, Scorer
from gym_torch.source import Dataset, Examples, Step, share

Used = tuple[Examples, Ints]  #: samples, and which of them
Score = tuple[bytes, npt.NDArray[np.float32]]  #: `key_of` and log-probabilities of an example
WEIGHTS = "the reference"  #: among `conditions` in `run.json`, names the weights of a reference that was asked before training


class ReferenceLogProbs:
    """Has a reference score all samples once, and let go of, where that is asked for or pays."""

    def __init__(
        self,
        parts: Parts[Any, ReferencedObjective[Any], Policy[Any], Any],
        reference: Reference,
        order: Dataset[Any],
        asked: Callable[[], Iterable[Used]],
    ) -> None:
        """Take what is scored, and by what; `asked` are the samples that the reference will be asked about."""
        self.parts, self.reference, self.order, self.asked = parts, reference, order, asked
        self.run, self.policy, self.accelerator = parts.run, parts.policy, parts.accelerator

    def begin(self, job: Job) -> None:
        """Tell the objective what the reference says, where it is not to be asked in every step.

        Raises GymError where the reference is not the one that the run began with.
        """
        again = int(self.order.bounds[-1]) > len(self.order.examples)  # whether responses come more than once
        asked, further = self.parts.config.precompute_ref_log_probs, self._named or not self.reference.without
        pays = (further or again) and not self.reference.further.follows
        if not (pays if asked == "auto" else asked):
            return
        self.reference.let_go()
        objective = self.parts.objective
        objective.cached_log_probs, objective.reference = self._kept(job, objective, self._steps()), None

    @property
    def _named(self) -> bool:
        """Whether the reference is another model."""
        return self.reference.further.path is not None

    def _steps(self) -> list[Step]:
        """Return this process's part of all samples that the reference will be asked about, each once."""
        parts = self.parts
        return [
            share(examples, chosen, parts.train, parts.layout, parts.rank, parts.world, 1.0)
            for examples, chosen in self.asked()
        ]

    def _own(self) -> Scorer | None:
        """Return the policy as the reference; None where it is another model, or no longer what it was."""
        without = self.reference.without
        if self._named or (self.parts.resumed and not without):
            return None
        return Scorer(self.policy, without or nullcontext)

    def _again(self) -> Scorer:
        """Return the reference, loaded once more: a copy of the model holds weights as the policy does, and says the same."""
        scorer = self.reference.made()
        if not self._named:
            for own, copied in zip(self.policy.model.parameters(), scorer.policy.model.parameters(), strict=True):
                copied.data = copied.data.to(own.dtype)
        return scorer

    def _kept(self, job: Job, objective: ReferencedObjective[Any], steps: Sequence[Step]) -> CachedLogProbs:
        """Return what the reference says of all responses: what was kept, or what it says now."""
        self.run.ranks.at("")  # it may take its time
        mine = {key_of(objective.prompt_responses(each)) for step in steps for batch in step.batches for each in batch}
        keys = sorted(set(gathered(self.accelerator, list(mine))))
        before = self.run.record.read().get("conditions", {}) if self.run.resuming else {}
        began: str | None = before.get(WEIGHTS)
        scorer = self._own()
        if began is None or scorer is not None or not self._there(self._file(began, keys)):
            scorer = scorer or self._again()
            weights = self._fingerprint(job, scorer.policy)
            if began not in (None, weights):
                raise GymError(
                    "the reference is not what it was when the run began",
                    key=self.reference.further.key if self._named else "model",
                    fix="bring the old one back, or start over in another `output`",
                )
            self.run.record.update(conditions={WEIGHTS: weights})
            file = self._file(weights, keys)
            if not self._there(file):
                say(f"the reference scores {len(keys):,} samples, once")
                found = dict(gathered(self.accelerator, list(self._scored(objective, scorer, steps))))
                self.run.ranks.agree(lambda: CachedLogProbs(found).write(file, file.stem))
            began = weights
        file = self._file(began, keys)
        return CachedLogProbs.read(file)

    def _there(self, file: Path) -> bool:
        return self.run.ranks.agree(lambda: CachedLogProbs.there(file, file.stem))

    def _scored(self, objective: ReferencedObjective[Any], scorer: Scorer, steps: Sequence[Step]) -> Iterator[Score]:
        """Yield key and log-probabilities of each example of this process; all processes work on as many batches."""
        for step in steps:
            for examples in step.batches:
                batch = objective.collate(examples)
                lengths = iter(batch.lengths.long().tolist())
                scores = scorer(batch.to(self.accelerator.device)).cpu().numpy()
                for each in map(objective.prompt_responses, examples):
                    size = sum(next(lengths) for _ in each.responses)
                    yield key_of(each), scores[:size]
                    scores = scores[size:]

    def _file(self, weights: str, keys: Sequence[bytes]) -> Path:
        # How responses are cut into batches changes the last bits: a run is then what its recipe says, whoever ran before.
        train, world = self.parts.train, self.parts.world
        how: list[Any] = [
            self.parts.model.precision,
            self.parts.objective.layout.name,
            train.batch_size,
            train.batch_tokens,
            world,
        ]
        how += [device_name(), self.policy.head.temperature, self.policy.model.config._attn_implementation]
        quantizer = self._quantizer()
        how.append(quantizer and identity(quantizer))  # the same codes may stand for other weights
        if self.reference.without is None and self.run.recipe.adapter:  # it computes a part of what the reference says
            how.append(identity(self.run.recipe.adapter))
        name = name_of(weights, how, keys)
        return cache_dir() / "reference" / f"{name}.safetensors"

    def _quantizer(self) -> LoadTimeQuantizer | None:
        """Return what the linear layers of the reference are stored by."""
        backend, path = part(self.run.recipe, TorchBackend), self.reference.further.path
        assert backend is not None
        return (backend if path is None else backend.other(path)).quantizer()

    def _fingerprint(self, job: Job, policy: Policy[Any]) -> str:
        """Name the model that the reference is, quantized weights included: without an adapter that is left out."""
        own = self.reference.without is not None
        weights = (weight for weight in policy.model.parameters() if not (own and weight.requires_grad))
        stored = (held for layer in stored_modules(policy.model).values() for held in layer.buffers())
        return fingerprint(map(job.spread.full, chain(weights, stored)), policy.model.config)
