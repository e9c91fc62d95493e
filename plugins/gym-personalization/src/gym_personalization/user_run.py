"""The run of one user among many: its own data, objective, optimizer, schedule, seed and record, over a shared base.

It is put together in the order of `gym_torch.assembly`, of the same parts, so that it is the run that `gym train` makes of the
same recipe.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from gym_core import Artifact, GymError, Recipe, Run
from gym_core.component import construct
from gym_core.execution import opening
from gym_core.record import RunRecord
from gym_optim.config import AdamW
from gym_optim.kinds import Optimizer
from gym_optim.promises import promised
from gym_personalization.base import FIX, AloneError, Base, check_shared, pairs_of
from gym_personalization.user_policy import UserAdapter, UserPolicy
from gym_torch import planners
from gym_torch.checkpoints.checkpoint_folders import Checkpoints
from gym_torch.checkpoints.saving import Results
from gym_torch.config import torch_algorithm
from gym_torch.console import warn
from gym_torch.contribution import Contribution, Parts, contributed
from gym_torch.kinds import TorchBackend, TorchStrategy, part
from gym_torch.loop import checks, log_evaluate
from gym_torch.loop.best_metric import best_metric
from gym_torch.loop.callbacks.metrics_jsonl import FILE, Metrics
from gym_torch.loop.callbacks.model_card import ModelCard
from gym_torch.loop.job import Job, keeps_best
from gym_torch.loop.lr_schedule import schedule
from gym_torch.loop.optimizer import optimizer_of
from gym_torch.loop.prepared_data import Prepared, described, prepare
from gym_torch.loop.signals import Signals
from gym_torch.model import stop_tokens
from gym_torch.objective import Objective
from gym_torch.observer import Observer, Observers, Progress
from gym_torch.policy import Policy
from gym_torch.reference import Reference
from gym_torch.source import Step


@dataclass
class UserRun:
    """One user in training."""

    name: str
    run: Run
    job: Job
    policy: UserPolicy
    adapter: UserAdapter
    results: Results
    data: Prepared
    references: tuple[Reference, ...]
    conditions: dict[str, Any]  #: what must be the same when it goes on
    steps: Iterator[Step] = field(default_factory=lambda: iter(()))
    ended: bool = False

    @property
    def slot(self) -> int:
        """Where its pairs stand."""
        return self.policy.slot

    def start(self) -> None:
        """Go on from where `job.progress` stands."""
        self.steps = iter(self.job.source.steps(self.job.progress.step))
        self.job.observer.started(self.job.progress)
        log_evaluate.tell(self.job)

    def finish(self) -> Artifact:
        """Write what was trained to `output/model` as a run of its own does, and say how it went.

        Where a quantizer follows, the record names no `artifact` before that is over: `user_scheduler.delivered` writes it.
        """
        artifact = self.results.keep(self.job)
        progress = self.job.progress
        self.job.observer.ended(progress, artifact)
        self.run.record.update(
            status="finished",
            error=None,
            seconds=round(progress.seconds, 3),
            trained=artifact.to_json(),
            artifact=None if self.run.recipe.quantization else artifact.to_json(),
            exports=[],
            training=progress.summary(),
        )
        self.ended = True
        return artifact

    def closed(self) -> None:
        """Tell who watched that it is over here, finished or not."""
        self.job.observer.closed()


def user_run(base: Base, name: str, recipe: Recipe, output: Path, slot: int, resuming: bool = False) -> UserRun:
    """Put the run of a user together, its pairs in a slot with their first values.

    Raises GymError for a recipe that cannot train with others, or data that cannot be learnt from; nothing is changed then but
    the values in the slot.
    """
    config = torch_algorithm(recipe)
    output.mkdir(parents=True, exist_ok=True)
    run = Run(recipe, output, RunRecord(output / "run.json"), resuming=resuming)
    run.record.update(artifact=None, error=None, **opening(recipe, run.record.read() if resuming else {}))
    checks.before_data(config, recipe, base.loaded)
    check_shared(recipe)
    objective: Objective[Any] = construct(config.objective, config, base.loaded.layout)
    _check(recipe, objective, base.loaded.precision)

    data = prepare(config, run, base.loaded)
    checks.evaluation(recipe.train, data.validation)
    stops = stop_tokens.of_chats(recipe, base.loaded)
    planned = planners.PlannedRun(recipe, base.loaded.path, base.loaded.precision, base.accelerator.device, data.train)
    train = planners.settle(run, planned)

    policy = UserPolicy(base.policy, base.lora, slot)
    adapter = UserAdapter(policy, partial(base.shell, recipe))
    built = base.shell(recipe) if resuming else base.adapted(recipe)  # who goes on has values of its own
    base.check_fits(recipe, built)
    adapter.begin(built)
    references = tuple(Reference(each, policy, adapter, base.loaded, run) for each in config.further())
    if references and not resuming and any(bool(pair.second.any()) for pair in pairs_of(built, recipe).values()):
        raise AloneError("an adapter that goes on is no base to be compared with", key="adapter", fix=FIX)
    parts = Parts(run, config, base.loaded, adapter, objective, policy, data, train, base.spread, references, resuming)
    found: Contribution = contributed(parts)
    if found.resources:
        raise AloneError("this algorithm holds resources of its own", key="algorithm", fix=FIX)

    optimizer_config, optimizer = optimizer_of(recipe, base.groups(policy.pairs), train, processes=1)
    checkpoints = Checkpoints(output / "checkpoints", train.keep_last, warn)
    conditions = {"the base model": base.fingerprint, "the recipe": recipe.fingerprint()}
    results = Results(run, base.loaded, adapter, policy, checkpoints, conditions, stops)
    job = Job(
        train=train,
        accelerator=base.accelerator,
        ranks=run.ranks,
        spread=base.spread,
        policy=policy,
        objective=found.objective,
        optimizer=optimizer,
        optimizer_config=optimizer_config,
        factor=schedule(recipe, found.source.total),
        source=found.source,
        evaluation=found.evaluation,
        observer=Observers([*_observers(run, base, data), *found.observers]),
        save=lambda job: None,
        signals=Signals(),
        progress=Progress(total=found.source.total),
        measure=config.measure,
        shown=config.shown(),
        best_by=best_metric(recipe),
        parts=(adapter,),
    )
    found.after_resume(job)
    return UserRun(name, run, job, policy, adapter, results, data, references, conditions)


def _observers(run: Run, base: Base, data: Prepared) -> list[Observer]:
    """Return what watches the run of one user among many: its log, its model card and the callbacks of its recipe."""
    card = ModelCard(run, base.loaded.name, {"samples": described(run.recipe, data), "fingerprint": data.fingerprint})
    chosen = [promised(each.build(run=run), Observer, each, "callbacks") for each in run.recipe.callbacks]
    return [Metrics(run.output / FILE), card, *chosen]


def _check(recipe: Recipe, objective: Objective[Any], precision: str) -> None:
    """Raise AloneError for what a user's recipe asks that depends on, or changes, more than the pairs of that user."""
    config, train, backend = torch_algorithm(recipe), recipe.train, recipe.model
    optimizer = part(recipe, Optimizer) or AdamW()
    libraries = backend.kernel_libraries() if isinstance(backend, TorchBackend) else ()
    strategy = part(recipe, TorchStrategy)
    sharing = 1 if strategy is None else strategy.shares_rows()
    name = type(config).__name__
    wrong = (
        (config.largest_steps, "algorithm", f"{name} makes its samples while it trains"),
        (objective.policy is not Policy, "algorithm", f"{name} trains more than log-probabilities"),
        (objective.temperature != 1.0, "algorithm", f"{name} scores under a temperature of its own"),
        (any(each.path or each.trains for each in config.further()), "algorithm", f"{name} needs a second model"),
        (
            not optimizer.keeps_gradients() or optimizer.updates_in_backward(),
            "optimizer",
            "it works in the backward pass",
        ),
        (keeps_best(train), "train.keep_best", "checkpoints of single users are not kept"),
        (precision == "fp16", "train.precision", "fp16 scales each loss by what its own gradients bear"),
        (train.loss_spike, "train.loss_spike", "steps are judged by the run that they are of"),
        (libraries, "model.kernels", "kernels of libraries are tried for one run"),
        (sharing > 1, "distributed.context_parallel_size", "processes are to share its rows"),
    )
    for found, key, why in wrong:
        if found:
            raise AloneError(f"{why}, which users that train together cannot share", key=key, fix=FIX)


def failed(run: Run, error: GymError) -> None:
    """Write down why a user's run ended early; what it left before stays."""
    with suppress(OSError):  # a full disk must not hide what happened
        run.record.update(status="failed", error={"problems": [problem.to_json() for problem in error.problems]})
