"""Assembles a run: from a recipe and a loaded model to a job for the loop, in order.

Each phase is a function in the subpackage that it belongs to. The order matters: weights of a checkpoint are loaded before
adapters are initialized, both before the model is distributed over processes, and the optimizer is created last.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any

from gym_core import Artifact, Run
from gym_core.component import construct
from gym_torch import kernel_libraries, planners
from gym_torch.checkpoints import training_state
from gym_torch.checkpoints.checkpoint_folders import Checkpoints
from gym_torch.checkpoints.resuming import conditions_of, go_on
from gym_torch.checkpoints.saving import Results
from gym_torch.compile_ahead import changeover_of
from gym_torch.compiled import compiling
from gym_torch.config import TorchAlgorithm
from gym_torch.console import warn
from gym_torch.contribution import Parts, contributed
from gym_torch.distributed.accelerator import new_accelerator, spread_of
from gym_torch.distributed.collectives import gathered
from gym_torch.distributed.context_parallel import check_dropout, check_shared
from gym_torch.distributed.strategies import sharing
from gym_torch.further_models import trained_further
from gym_torch.loop import checks, divergence_report, summary, train_loop
from gym_torch.loop.adapter_initialization import first_step, initialize
from gym_torch.loop.best_metric import best_metric
from gym_torch.loop.callbacks import observers_of
from gym_torch.loop.job import Job
from gym_torch.loop.loss_scale import LossScale
from gym_torch.loop.loss_spikes import LossSpikes
from gym_torch.loop.lr_schedule import schedule
from gym_torch.loop.optimizer import optimizer_of
from gym_torch.loop.prepared_data import described, prepare
from gym_torch.loop.signals import Signals
from gym_torch.loop.train_eval_parity import check_same_in_training
from gym_torch.memory import memory_meter
from gym_torch.memory.gradient_checkpointing import recompute_layers
from gym_torch.model import stop_tokens
from gym_torch.model.adapted import adapt
from gym_torch.model.dropout import disable_dropout
from gym_torch.model.load_balancing import balance_of
from gym_torch.model.loading import LoadedModel, check_loaded
from gym_torch.model.neftune import Noise
from gym_torch.model.parameter_groups import groups_of
from gym_torch.objective import Objective
from gym_torch.observer import Observers, Progress
from gym_torch.policy import Policy
from gym_torch.reference import Reference, keep_start
from gym_torch.shared_prefixes import training_layout
from gym_torch.source import Source


class Training:
    """Trains one recipe; `train()` continues where an earlier process stopped."""

    def __init__(self, config: TorchAlgorithm, run: Run, model: LoadedModel) -> None:
        """Store the arguments; all work is in `train`."""
        self.config, self.run, self.model = config, run, model

    def train(self) -> Artifact:
        """Train to the end, write the model to `output/model`, and return its artifact."""
        with ExitStack() as resources:
            return assemble_and_train(self.config, self.run, self.model, resources)


def assemble_and_train(config: TorchAlgorithm, run: Run, model: LoadedModel, resources: ExitStack) -> Artifact:
    """Assemble the job of a run, train it, and return the artifact.

    Resources of the algorithm are entered into `resources`, which the caller closes. Raises what the components of the recipe
    raise.
    """
    recipe = run.recipe
    check_loaded(model, recipe.model or "the hook load_model", "model")
    resources.enter_context(kernel_libraries.in_use(run))
    checks.before_data(config, recipe, model)
    accelerator, meter = new_accelerator(), memory_meter.of_run(run)

    data = prepare(config, run, model)
    checks.evaluation(recipe.train, data.validation)
    stops = stop_tokens.of_chats(recipe, model)
    planned = planners.PlannedRun(recipe, model.path, model.precision, accelerator.device, data.train)
    train = planners.settle(run, planned)

    adapted = adapt(model.model, recipe)
    checks.adapter(adapted, model)
    checks.reached(model, recipe)
    if config.disable_dropout:
        disable_dropout(adapted.model)
    check_dropout(adapted.model, sharing(recipe))

    objective: Objective[Any, Any] = construct(config.objective, config, model.layout)
    auxiliary = objective.load_auxiliary_modules(model, trained_further(config, recipe, model, train))
    recompute_layers(adapted.model, train.gradient_checkpointing)
    spread = spread_of(recipe, accelerator)
    spread.place(adapted.model)
    policy: Policy[Any] = objective.policy(
        adapted.model, model.precision, temperature=objective.temperature, auxiliary=auxiliary
    )
    policy.context = spread.context

    checkpoints = Checkpoints(run.output / "checkpoints", train.keep_last, warn)
    found = checkpoints.to_go_on_from(run)
    if found:
        training_state.load(found, adapted, policy)

    references = tuple(Reference(each, policy, adapted, model, run) for each in config.further() if not each.trains)
    parts = Parts(run, config, model, adapted, objective, policy, data, train, spread, references, found is not None)
    contribution = contributed(parts)
    for resource in contribution.resources:
        resources.enter_context(resource)
    objective, source = contribution.objective, contribution.source

    if found:
        training_state.extend(found, source)
    else:
        begin(parts, objective, source)
    layers = compiling.Layers(adapted.model, model.layout, model.precision, train.gradient_checkpointing)
    alone = accelerator.num_processes == 1
    policy.train()  # layers that compute again do so in training alone
    policy.balance = balance_of(adapted.model, model.router_aux_loss_coef)  # which runs the model, whole as it still is
    checks.watched(policy.balance, model.compile)
    changeover = None  # layers that talk to other processes are not compiled, also where the run was before
    if spread.context is None and policy.balance is None and layers.placed(accelerator.device):
        everywhere = partial(gathered, accelerator)
        ahead = changeover_of(run, layers, model.compile, source.tokens, alone, everywhere)
        changeover = resources.enter_context(ahead)
        if not alone:
            changeover.now(training_state.step_of(found) if found else 0)
    wrapped = spread.wrap(policy)
    check_shared(policy, spread)

    groups = groups_of(policy.model, policy)
    optimizer_config, optimizer = optimizer_of(recipe, groups, train, accelerator.num_processes)
    results = Results(run, model, adapted, policy, checkpoints, conditions_of(run, model, config), stops)
    watching = [*observers_of(run, model, data), *contribution.observers] if accelerator.is_main_process else []
    checks.observers(watching, contribution.evaluation is not None)
    job = Job(
        train=train,
        accelerator=accelerator,
        ranks=run.ranks,
        spread=spread,
        policy=wrapped,
        objective=objective,
        optimizer=optimizer,
        optimizer_config=optimizer_config,
        factor=schedule(recipe, source.total),
        source=source,
        evaluation=contribution.evaluation,
        observer=Observers(watching),
        save=results.checkpoint,
        signals=Signals(),
        progress=Progress(total=source.total),
        measure=config.measure,
        shown=config.shown(),
        best_by=best_metric(recipe),
        balance=policy.balance,
        loss_scale=LossScale(train.loss_scale) if model.precision == "fp16" else None,
        spikes=LossSpikes(train.loss_spike) if train.loss_spike else None,
        parts=(adapted, *policy.auxiliary_modules),
        changeover=changeover,
    )
    policy.noise = Noise.of(adapted.model, model, train.seed, lambda: job.progress.step)
    objective.layout = training_layout(recipe, model, adapted.model)
    summary.tell_start(job, policy, described(recipe, data))
    summary.record_start(run, job, data.fingerprint, results.conditions)

    with job.observer:
        if found:
            go_on(found, job, policy, results.conditions, run, checkpoints)
        training_state.check_skips(recipe.train.skip_steps, job.progress)
        contribution.after_resume(job)
        load(references)
        with job.signals:
            if not found:
                checks.best_metric(job)
            with divergence_report.written(run, model.path):
                train_loop.run(job)
            artifact = results.keep(job)
            job.observer.ended(job.progress, artifact)
    summary.record(run, job, model, data, meter, planned)
    summary.tell_end(job, artifact)
    return artifact


def begin(parts: Parts[Any, Any, Any], objective: Objective[Any, Any], source: Source) -> None:
    """Initialize what trains, check that the policy equals its reference at the start, and save initial values."""
    ready = partial(load, parts.references)
    first = partial(first_step, parts.policy, objective, source, parts.spread, parts.train.seed, ready)
    with parts.spread.whole_rows():  # what an adapter sees of a layer is then what one process does
        initialize(parts.adapted, parts.policy, first)
    if parts.config.disable_dropout:
        check_same_in_training(parts.policy, parts.layout, parts.run.recipe)
        keep_start(parts.adapted, parts.model, parts.run)


def load(references: tuple[Reference, ...]) -> None:
    """Load the references that are used in every step."""
    for reference in references:
        if reference.needed:
            reference.load()
