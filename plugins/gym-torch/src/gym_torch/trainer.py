"""Puts a job together from a recipe, has the loop work on it, and keeps what was made."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs

from gym_core import Artifact, GymError, Optimizer, RecipeError, Run, Train
from gym_core.component import load_object
from gym_data import DatasetConfig
from gym_data.prepare import open_tokenizer
from gym_data.tokenizer import Tokenizer
from gym_optim.config import AdamW, Linear
from gym_torch import planners
from gym_torch.checkpoints import resume
from gym_torch.checkpoints.checkpoint import Checkpoints
from gym_torch.checkpoints.extending import bases, extended, schedule
from gym_torch.checkpoints.results import Results
from gym_torch.config import TorchAlgorithm, Transformers
from gym_torch.console import say, warn
from gym_torch.distributed.ddp import Replicated
from gym_torch.distributed.strategies import DDP
from gym_torch.loop import train_loop
from gym_torch.loop.callbacks.llamafactory import LlamaFactoryFiles
from gym_torch.loop.callbacks.loss_plot import Curves
from gym_torch.loop.callbacks.metrics import Metrics
from gym_torch.loop.callbacks.model_card import ModelCard
from gym_torch.loop.callbacks.progress_bar import ProgressBar
from gym_torch.loop.evaluation import HeldOutLoss
from gym_torch.loop.initialization import first_step, initialize
from gym_torch.loop.job import Evaluation, Job
from gym_torch.loop.prepared_data import prepare
from gym_torch.loop.signals import Signals
from gym_torch.loop.train_eval_parity import check_same_in_training
from gym_torch.model import compiling, precision_probe, stop_tokens
from gym_torch.model.adapted import adapt
from gym_torch.model.dropout import disable_dropout
from gym_torch.model.gradient_checkpointing import recompute_layers
from gym_torch.model.load_balancing import balance_of
from gym_torch.model.loading import LoadedModel
from gym_torch.model.memory_meter import Meter
from gym_torch.model.neftune import Noise
from gym_torch.model.parameter_groups import groups_of
from gym_torch.objective import Objective
from gym_torch.observer import Observer, Observers, Progress
from gym_torch.packing import Layout
from gym_torch.policy import Policy
from gym_torch.reference import keep_start
from gym_torch.source import Dataset, Examples, Source, once


class Trainer:
    """Trains one recipe; `train()` continues where an earlier process stopped."""

    def __init__(self, config: TorchAlgorithm, run: Run, model: LoadedModel) -> None:
        """Prepare the data, mark what is trained and lay out the steps.

        Raises what the data plugin, the adapter, the optimizer and the callbacks raise.
        """
        self.run, self.model = run, model
        recipe, train = run.recipe, run.recipe.train
        if model.neftune_noise_alpha and config.disable_dropout:
            raise RecipeError(
                "the noise would be in the policy and not in what it is compared with",
                key="model.neftune_noise_alpha",
                fix="leave it out: it is for algorithms without a comparison, such as sft",
            )
        # The policy casts, and over fp32 weights. Without `cpu`, accelerate does not see several processes on a CPU.
        quick = DistributedDataParallelKwargs(gradient_as_bucket_view=True)
        self.accelerator = Accelerator(
            mixed_precision="no", cpu=precision_probe.device().type == "cpu", kwargs_handlers=[quick]
        )
        self.data = prepare(config, run, model)
        words = self._chat_tokenizer()
        stops = words if words and stop_tokens.stop_where_turns_end(model.model, words) else None
        self.planned = planners.PlannedRun(
            recipe, model.path, model.precision, self.accelerator.device, self.data.train
        )
        self.train_options = planners.settle(run, self.planned)
        self.meter: Meter = run.notes.setdefault("meter", Meter(self.accelerator.device))
        self.adapted = adapt(model.model, recipe)
        if (
            isinstance(recipe.model, Transformers)
            and recipe.model.resize_vocab
            and self.adapted.artifact_kind == "adapter"
        ):
            raise RecipeError(
                "an adapter does not hold the embeddings that are added to its base",
                key="model.resize_vocab",
                fix="leave the adapter out, or train on a copy of the model that was resized before",
            )
        if config.disable_dropout and disable_dropout(self.adapted.model):
            say("dropout is off: the loss compares log-probabilities, and chance would stand on one side alone")
        self.signals = Signals()
        self.checkpoints = Checkpoints(run.output / "checkpoints", train.keep_last, warn)
        found = run.ranks.agree(lambda: str(self.checkpoints.latest() or "")) if run.resuming else ""
        self.found = Path(found) if found else None
        self.job = self._job(config)
        conditions = run.ranks.agree(lambda: bases(model, config) | {"the precision": model.precision})
        self.results = Results(run, model, self.adapted, self.policy, self.checkpoints, conditions, stops)
        if model.neftune_noise_alpha:
            embedding = self.adapted.model.get_input_embeddings()
            self.policy.noise = Noise(embedding, model.neftune_noise_alpha, train.seed, lambda: self.job.progress.step)
        self.policy.balance = self.job.balance = balance_of(self.adapted.model, model.router_aux_loss_coef)
        trained = sum(weight.numel() for weight in self.policy.parameters() if weight.requires_grad)
        every = sum(weight.numel() for weight in self.policy.parameters())
        world = self.accelerator.num_processes
        say(
            f"training {trained:,} of {every:,} parameters on {len(self.data.train):,} samples, "
            f"{self.job.progress.total:,} steps" + f", {world} processes" * (world > 1)
        )

    def train(self) -> Artifact:
        """Train to the end, write the model to `output/model` and say how it went."""
        job = self.job
        if self.found:
            before = resume.restore(self.found, job, self.policy, self.results.conditions)
            say(f"continuing from {self.found.name}")
            if job.progress.total > before:
                say(extended(self.run.recipe, job, before))
        resume.check_skips(self.run.recipe.train.skip_steps, job.progress)
        with self.signals:
            try:
                train_loop.run(job)
                artifact = self.results.keep(job)
                job.observer.ended(job.progress, artifact)
            finally:
                job.observer.closed()
        self._summarize(artifact)
        return artifact

    def source(self, layout: Layout) -> Source:
        """Return where the steps come from: the prepared data. An algorithm that makes its samples overrides this."""
        return Dataset(self.data.train, self.train_options, self.data.fingerprint, layout)

    def evaluation(self, examples: Examples, layout: Layout) -> Evaluation:
        """Return what measures the policy on held-out samples: its loss. An algorithm that makes samples overrides this."""
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        return HeldOutLoss(once(examples, self.train_options, layout, rank, world))

    def ready(self) -> None:
        """Give `self.objective` what its loss needs beside `self.policy`, for adapters that look at the first step."""

    def _job(self, config: TorchAlgorithm) -> Job:
        run, train, accelerator = self.run, self.train_options, self.accelerator
        layout = self.model.layout
        validation, model = self.data.validation, self.adapted.model
        if train.eval_every and not validation and accelerator.is_main_process:
            warn("train.eval_every does nothing without a validation split; set `data: {validation: 0.05}`")
        if train.keeps_best and not (train.eval_every and validation):
            raise RecipeError(
                "the best checkpoint is found by evaluating while training",
                key="train.keep_best" if train.keep_best else "train.load_best_model_at_end",
                fix="set `train: {eval_every: 100}` and `data: {validation: 0.05}`",
            )
        self.objective: Objective[Any] = load_object(config.objective)(config, layout)
        objective = self.objective
        beside = objective.load_beside(run, self.model)
        recompute_layers(model, train.gradient_checkpointing)
        strategy = (
            run.recipe.distributed
            if accelerator.num_processes > 1 and isinstance(run.recipe.distributed, DDP)
            else DDP()
        )
        spread: Replicated = load_object(strategy.spread)(accelerator)
        spread.place(model)
        bf16 = self.model.precision == "bf16"
        self.policy = objective.policy(model, bf16, temperature=objective.temperature, beside=beside)
        if self.found:
            resume.load(self.found, self.adapted, self.policy)
        source = self.source(layout)
        if self.found:
            resume.extend(self.found, source)
        else:
            first = partial(first_step, self.policy, objective, source, accelerator, train.seed, self.ready)
            initialize(self.adapted, self.policy, first)
            if config.disable_dropout:
                check_same_in_training(self.policy, layout, run.recipe)
                keep_start(self.adapted, self.model, run)
        self._compile(source)
        policy = spread.wrap(self.policy)
        policy.train()
        optimizer_config = run.recipe.optimizer or AdamW()
        optimizer = build_optimizer(optimizer_config, self.policy, train.learning_rate)
        if optimizer_config.updates_in_backward():
            check_in_backward(train, accelerator.num_processes)
        if run.recipe.adapter and run.recipe.adapter.needs_gradients:
            check_gradients_stay(not optimizer_config.keeps_gradients(), spread.cuts)
        scheduler = run.recipe.scheduler or Linear()
        if optimizer_config.averages() and train.load_best_model_at_end and spread.cuts:
            raise RecipeError(
                "fsdp leaves no process what an optimizer that averages would make of its best checkpoint",
                key="train.load_best_model_at_end",
                fix="set `distributed: ddp`, or leave it out",
            )
        if optimizer_config.averages() and scheduler.ends_at != 1.0:
            warn(
                "the average of this optimizer stands in for a falling rate, and the rate falls; set scheduler: constant"
            )
        return Job(
            train=train,
            accelerator=accelerator,
            ranks=run.ranks,
            spread=spread,
            policy=policy,
            objective=objective,
            optimizer=optimizer,
            optimizer_config=optimizer_config,
            factor=schedule(run.recipe, source.total),
            source=source,
            evaluation=self.evaluation(validation, layout) if validation else None,
            observer=Observers(self._observers() if accelerator.is_main_process else []),
            save=lambda job: self.results.checkpoint(job),  # noqa: PLW0108 - the results come later
            signals=self.signals,
            progress=Progress(total=source.total),
            measure=config.measure,
            better=config.better,
            parts=(self.adapted, *self.policy.companions),
        )

    def _compile(self, source: Source) -> None:
        """Compile the layers where that pays; a resumed run does as it did before."""
        record, model = self.run.record, self.adapted.model
        chosen = record.read().get("compiled") if self.run.resuming else None
        if chosen is None:
            bf16 = self.model.precision == "bf16"
            asked, layout = self.model.compile, self.model.layout
            recomputed = self.train_options.gradient_checkpointing
            chosen = self.run.ranks.agree(
                lambda: compiling.decide(asked, model, layout, bf16, source.tokens, recomputed)
            )
        record.update(compiled=chosen)
        if chosen:
            compiling.compile_layers(model)

    def _observers(self) -> list[Observer]:
        run, output = self.run, self.run.output
        data = {"samples": len(self.data.train), "fingerprint": self.data.fingerprint}
        measure = run.recipe.algorithm.measure
        plot = [Curves(output, ["loss", measure])] if run.recipe.train.plot else []
        card = ModelCard(run, self.model.name, data)
        logs = [Metrics(output / "metrics.jsonl"), LlamaFactoryFiles(output, measure)]
        own = [*logs, *plot, card, ProgressBar(measure)]
        return [*own, *(callback.build(run=run) for callback in run.recipe.callbacks)]

    def _chat_tokenizer(self) -> Tokenizer | None:
        """Return the tokenizer with the chat template that is trained on; None where plain text is, or other data."""
        data, chats = self.run.recipe.data, self.run.recipe.algorithm.rows != "text"
        return open_tokenizer(data, self.model.path) if isinstance(data, DatasetConfig) and chats else None

    def _summarize(self, artifact: Artifact) -> None:
        progress, run, measure = self.job.progress, self.run, self.job.measure
        if not self.accelerator.is_main_process:
            return
        run.record.update(
            training={
                "steps": progress.step,
                "epochs": progress.epoch,
                "tokens": progress.tokens,
                "samples": progress.samples,
                "mean_loss": progress.mean_loss,
                **progress.figures,
                "seconds": round(progress.seconds, 3),
                "stopped": progress.stop or None,
                "skipped": progress.skipped,
                "best": {"step": progress.best_step, f"eval_{measure}": progress.best} if progress.evaluated else None,
                "precision": self.model.precision,
                "device": precision_probe.device_name(),
                "processes": self.accelerator.num_processes,
            },
            data={"fingerprint": self.data.fingerprint, "report": self.data.report},
            memory={
                "measured_bytes": self.meter.peak(),
                "predicted_bytes": planners.predicted_bytes(self.planned, self.train_options, progress.seconds),
            },
        )
        speed = f"{progress.tokens / max(progress.seconds, 1e-9):,.0f} tokens/s"
        say(f"{progress.step:,} steps, {progress.tokens:,} tokens in {progress.seconds:.1f} s ({speed})")
        if progress.stop:
            say(f"ended early: {progress.stop}")
        figures = {name: f"{value:.4f}" for name, value in progress.figures.items()}
        if measure in figures:
            held_out = f", held out {figures[f'eval_{measure}']}" if progress.evaluated else ""
            first, last = figures[f"first_{measure}"], figures[measure]
            # A run with a single line of its log has nothing to compare.
            say(f"{measure} {last}{held_out}" if first == last else f"{measure} {first} -> {last}{held_out}")
        say(f"{artifact.kind}: {artifact.path}")


def build_optimizer(optimizer: Optimizer, policy: Policy[Any], learning_rate: float) -> torch.optim.Optimizer:
    """Build the optimizer over what is trained, in named groups by role; vectors do not decay."""
    groups = groups_of(policy.model, policy)
    if not groups:
        raise GymError("nothing is trained: every weight is frozen", key="adapter")
    built: torch.optim.Optimizer = optimizer.build(parameters=groups, learning_rate=learning_rate)
    for group in built.param_groups:
        group.setdefault("initial_lr", group["lr"])
    return built


def check_gradients_stay(let_go: bool, cut: bool) -> None:
    """Raise RecipeError where an adapter that looks at the gradients of each step finds not all, or only parts of them."""
    for found, why, key, fix in (
        (let_go, "an optimizer that works in the backward pass leaves no gradients", "optimizer", "optimizer: adamw"),
        (cut, "fsdp leaves each process a part of the gradients", "distributed", "distributed: ddp"),
    ):
        if found:
            raise RecipeError(f"{why}, and this adapter looks at them in every step", key=key, fix=f"set {fix}")


def check_in_backward(train: Train, processes: int) -> None:
    """Raise RecipeError for what an optimizer in the backward pass, which sees one gradient at a time, gets wrong."""
    wrong = {
        "train.accumulate": (train.accumulate > 1, "sum gradients of several passes", "train.accumulate: 1"),
        "train.max_grad_norm": (train.max_grad_norm > 0, "clip by the norm of all gradients", "train.max_grad_norm: 0"),
        "distributed": (processes > 1, "average gradients over processes", "--nproc 1"),
    }
    for key, (found, why, fix) in wrong.items():
        if found:
            raise RecipeError(f"an optimizer in the backward pass cannot {why}", key=key, fix=f"set {fix}")
