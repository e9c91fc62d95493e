"""Writes checkpoints and `output/model`, each with an `artifact.json`."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from gym_core import Artifact, PluginError, Run
from gym_data.chat.template_hash import template_hash
from gym_data.kinds import Data
from gym_data.location import is_hub_id, lasting
from gym_data.tokenizer import Tokenizer
from gym_data.tokenizer_files import read_tokenizer
from gym_optim.promises import named
from gym_torch.checkpoints import training_state
from gym_torch.checkpoints.base_fingerprint import SAID, base_fingerprint
from gym_torch.checkpoints.checkpoint_folders import PREFIX, Checkpoints, whole_or_gone
from gym_torch.checkpoints.tokenizer_files import copy_tokenizer, remove_templates
from gym_torch.config import torch_algorithm
from gym_torch.distributed.optimizer_state import NotPlainError
from gym_torch.kinds import part
from gym_torch.loop.job import Job, keeps_best
from gym_torch.model import stop_tokens
from gym_torch.model.adapted import AdaptedModel
from gym_torch.model.loading import LoadedModel
from gym_torch.policy import Policy
from gym_torch.recorded_components import told_of


@dataclass(frozen=True)
class Results:
    """Writes what a job has made so far."""

    run: Run
    model: LoadedModel
    adapted: AdaptedModel
    policy: Policy[Any]
    checkpoints: Checkpoints
    conditions: Mapping[str, Any]  #: what must be the same when the run goes on, by the name a user would call it
    stops: Tokenizer | None  #: of whose chat template the turns end where the model is now to stop

    def checkpoint(self, job: Job) -> None:
        """Write a checkpoint of a job as it is."""
        self.run.ranks.at("")  # a large model takes its time
        try:
            optimizer = job.spread.optimizer(job.optimizer, self.policy)
        except NotPlainError as error:
            raise PluginError(
                f"the optimizer of {named(job.optimizer_config)} keeps {error}, which no checkpoint can hold",
                key="optimizer",
                fix="keep tensors and plain data: None, bool, int, float, str, list, tuple and dict",
            ) from None
        best = job.progress.best_step if keeps_best(job.train) else None

        def write(path: Path) -> None:
            made = training_state.write(path, job, self.adapted, self.policy, self._base, self.conditions, optimizer)
            told = self._told(made, job, job.progress.step)
            replace(told, details=told.details | {"averaged": job.optimizer_config.averages()}).record()
            self._copy_tokenizer(path)

        with job.spread.whole(self.policy):
            self.run.ranks.agree(lambda: self.checkpoints.save(job.progress.step, write, best).name)
        self._name_best(job)

    def _name_best(self, job: Job) -> None:
        if keeps_best(job.train) and job.progress.best_step != -1:
            self.run.record.update(best_checkpoint=f"{PREFIX}{job.progress.best_step:08d}")

    def keep(self, job: Job) -> Artifact:
        """Write what was made to `output/model`, all or nothing: the last step, or the best where that is asked for.

        Raises GymError where the checkpoint of the best is gone.
        """
        self.run.ranks.at("")
        # An evaluation that a signal broke off after the last step is made up for when its checkpoint is there already.
        self._name_best(job)
        best = job.train.load_best_model_at_end and job.progress.best_step not in (-1, job.progress.step)
        weights = nullcontext() if best else job.optimizer_config.evaluation_weights(job.optimizer)
        with weights, job.spread.whole(self.policy):
            write = partial(self._best, job) if best else partial(self._write, job, job.progress.step)
            made = self.run.ranks.agree(lambda: write().to_json())
        return Artifact.from_json(made, self.run.output)

    def _best(self, job: Job) -> Artifact:
        found = self.checkpoints.at(job.progress.best_step)
        training_state.put_weights(found, self.adapted, self.policy)
        if job.optimizer_config.averages():
            training_state.put_optimizer(found, job, self.policy)
        with job.optimizer_config.evaluation_weights(job.optimizer):
            return self._write(job, job.progress.best_step)

    def _write(self, job: Job, step: int) -> Artifact:
        path = self.run.output / "model"
        shutil.rmtree(path, ignore_errors=True)
        with whole_or_gone(path, "the model", "the last checkpoint") as building:
            made = self._told(training_state.save(building, self.adapted, self.policy, self._base), job, step)
            self._copy_tokenizer(building)
        return replace(made, path=path)

    @property
    def _base(self) -> str:
        """What others open the base by: an id on the Hub, or the directory that it lies in here."""
        if is_hub_id(self.model.name):
            return self.model.name
        return str((self.model.own_folder or self.model.path).resolve())

    def _told(self, made: Artifact, job: Job, step: int) -> Artifact:
        """Return an artifact that says all there is to say: what it is for, of which step, and what it was made from."""
        details = {**made.details, "step": step}
        if self._template is not None:
            details["template_sha256"] = template_hash(self._template)
        data = part(self.run.recipe, Data)
        details |= told_of(data.reads_media() if data else None, "media")
        if made.kind == "adapter":
            details |= {**self.model.described, SAID: self._fingerprint}
            if self.adapted.starts_from_weights:
                details |= told_of(self.model.quantization, "quantizer")
            made = replace(made, base=lasting(self.model.name))
        return replace(made, details=details, task=job.objective.task)

    @cached_property
    def _fingerprint(self) -> str:
        return base_fingerprint(self.model.path)

    @cached_property
    def _template(self) -> str | None:
        """Return the chat template that was trained on; None where rows are no chats, or there is none."""
        data = part(self.run.recipe, Data)
        if data is None or torch_algorithm(self.run.recipe).rows == "text":
            return None
        own = data.chat_template(self.model.path)
        if own is not None or not (self.model.path / "tokenizer.json").is_file():
            return own
        return read_tokenizer(self.model.path).templates.get("default")

    def _copy_tokenizer(self, into: Path) -> None:
        """Lay the tokenizer beside the weights, with the chat template that was trained on and where its turns end."""
        copy_tokenizer(self.model.path, into)
        data = part(self.run.recipe, Data)
        template = data.chat_template(self.model.path) if data else None
        if template is not None:
            remove_templates(into)
            (into / "chat_template.jinja").write_text(template, encoding="utf-8")
        if self.stops:
            stop_tokens.write(self.model.model, self.stops, into)
