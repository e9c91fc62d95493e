"""The training loop, the only one there is: every algorithm runs through it with its objective.

It knows neither recipes nor files. One optimizer step: seed, collate, agree on the denominator, forward and backward
over each batch, clip, check, update.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from functools import partial
from signal import SIGINT, SIGTERM

import torch
from torch import Tensor, nn

from gym_core import Interrupted
from gym_optim.promises import named, promised
from gym_torch.auxiliary_module import AuxiliaryModule
from gym_torch.contract_checks import check_names
from gym_torch.distributed.collectives import gathered, over_processes
from gym_torch.loop.job import Job, keeps_best
from gym_torch.loop.log_evaluate import due, tell
from gym_torch.loop.loss_spikes import Spike
from gym_torch.loop.nonfinite import check_weights, explain
from gym_torch.loop.step_batches import StepBatches, place, reseed
from gym_torch.loop.step_metrics import StepMetrics
from gym_torch.loop.unreached import tell_unreached
from gym_torch.metrics import UNLEARNT, Mean
from gym_torch.source import Step


def run(job: Job) -> None:
    """Train from where `job.progress` stands to the end.

    Raises Interrupted after a signal, when a checkpoint is written; DataError when a step has nothing to learn
    from; Diverged, a GymError, at the first loss or gradient that is not finite.
    """
    train, progress = job.train, job.progress
    found = job.source.steps(progress.step, job.spread.rank, job.spread.world)
    steps = promised(found, Iterator, f"{named(job.source)}.steps", "algorithm")  # type: ignore[type-abstract]
    peaks = [group["initial_lr"] for group in job.optimizer.param_groups]
    job.observer.started(progress)
    while True:
        # What is due after a step comes first in the next round: a resumed run does what was left undone.
        tell(job)
        asked = agree_to_stop(job)
        best = keeps_best(train) and progress.best_step == progress.step
        if (asked or best or due(progress, train.save_every)) and job.saved != progress.reached:
            # A run must be able to go back to any checkpoint.
            check_weights(job.accelerator.unwrap_model(job.policy), job.last, train.skip_steps)
            job.observer.saving(progress)
            job.save(job)
            job.saved = progress.reached
        if asked:
            raise Interrupted(asked)
        if progress.over:
            return
        if job.changeover:
            job.changeover.before(progress.step)
        job.ranks.at("")  # a source may sample and judge its steps first, which takes its time
        began = time.monotonic()
        by = f"{named(job.source)}.steps, for step {progress.step + 1} of {progress.total},"
        step = promised(next(steps, None), Step, by, "algorithm")
        check_names(step.metrics.keys() - {UNLEARNT}, by)
        if progress.step + 1 in train.skip_steps:
            skip(job, step)
            job.observer.stepped(progress)
        elif step.idle:
            rest(job, step, began)
            job.observer.stepped(progress)
        elif optimizer_step(job, step, [peak * job.factor(progress.scheduled) for peak in peaks], began):
            job.observer.stepped(progress)


def skip(job: Job, step: Step, spike: Spike | None = None) -> None:
    """Let a step go by without an update: the schedule goes on, and its samples are written down, with the spike that it was."""
    progress = job.progress
    progress.step, progress.epoch = progress.step + 1, step.epoch
    progress.skipped.append(progress.step)
    counted = step.batches[: len(step.batches) - step.spare] if job.spread.first else ()
    names = gathered(job.accelerator, [example.id for batch in counted for example in batch])
    job.observer.skipped(
        progress,
        {"step": progress.step, "epoch": progress.epoch, "skipped": names, **(spike.record() if spike else {})},
    )


def rest(job: Job, step: Step, began: float) -> None:
    """Let a step go by that has nothing to learn from: weights and optimizer stay as they are, the schedule goes on."""
    progress, seconds = job.progress, time.monotonic() - began
    progress.step, progress.epoch, progress.idle = progress.step + 1, step.epoch, progress.idle + 1
    progress.seconds += seconds
    job.window.add(
        {"loss": 0.0, "grad_norm": 0.0, "num_tokens": 0.0, "seconds": seconds, **step.metrics, UNLEARNT: 1.0}
    )


def optimizer_step(job: Job, step: Step, rates: Sequence[float], began: float) -> bool:
    """Take one optimizer step; return False, with the model untouched, when a signal came in between.

    `began` is when its source was asked for it, `time.monotonic`: what samples its own steps takes most of the time of a run.
    Where the gradient is 0 there was nothing to learn from, and momentum and decay move nothing: weights and optimizer stay as
    they are, as in `rest`. An optimizer in the backward pass, which never sees the whole gradient, is the exception.
    """
    in_backward = job.optimizer_config.updates_in_backward()
    whole = StepBatches.of(job, step)
    for group, rate in zip(job.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    metrics = StepMetrics()
    for number in range(len(whole.batches)):
        backward(job, step, whole, number, metrics)
        if job.stopped and not in_backward:
            job.optimizer.zero_grad()
            return False
    update(job, step, whole, metrics, began)
    return True


def update(job: Job, step: Step, whole: StepBatches, metrics: StepMetrics, began: float) -> None:
    """Update the weights by the gradients of a step, all of whose batches went backward.

    Where the loss was scaled and the gradients are not finite, but the loss is, the scale was too large: it falls, and nothing is
    updated; nor is it by a spike that is to be skipped. Otherwise raises Diverged where the loss or a gradient is not finite, or
    the step is a spike, and then changes nothing.
    """
    train, progress = job.train, job.progress
    moved, resting = divided(job, step)
    if job.loss_scale:
        job.loss_scale.unscale(moved)
    norm = job.spread.clip(moved, train.max_grad_norm)
    # The one wait for the device in a step: nothing is updated before the numbers are known to be finite.
    *local, norm_value = torch.cat([metrics.numbers(), norm.flatten()]).tolist()
    values = metrics.reduced(job.accelerator, local)
    sound = all(map(math.isfinite, values.values()))
    overflowed = sound and not math.isfinite(norm_value) and job.loss_scale is not None and job.loss_scale.overflowed()
    spike = job.spikes.judged(values["loss"], norm_value) if job.spikes and not overflowed else None
    if spike or not (overflowed or (sound and math.isfinite(norm_value))):
        policy = job.accelerator.unwrap_model(job.policy)
        check_weights(policy, job.last, train.skip_steps)
        if job.spikes and job.spikes.options.action == "skip" and job.spikes.skipped():
            job.optimizer.zero_grad()
            skip(job, step, spike)
            return
        join = partial(gathered, job.accelerator)
        fp16 = job.loss_scale is not None
        raise explain(policy, job.objective, step, progress.step + 1, train.skip_steps, join, fp16, spike)
    learnt = not overflowed and (norm_value > 0 or job.optimizer_config.updates_in_backward())
    if learnt:
        if job.last is None and job.optimizer_config.keeps_gradients():
            tell_unreached(job.accelerator.unwrap_model(job.policy))
        for weight in resting:  # of what has no gradient an optimizer moves nothing, its momentum and decay included
            weight.grad = None
        job.optimizer.step()
        for part in job.parts:
            if step.only_beside and not isinstance(part, AuxiliaryModule):
                continue
            part.after_step(progress.step + 1, progress.total)
    job.optimizer.zero_grad()
    progress.step, progress.epoch = progress.step + 1, step.epoch
    progress.tokens, progress.samples = progress.tokens + int(whole.tokens), progress.samples + int(whole.samples)
    seconds = time.monotonic() - began
    progress.seconds += seconds
    check_names(step.metrics, f"{named(job.source)}.steps", beside=values)
    values |= step.metrics
    values |= {"num_tokens": whole.tokens, "seconds": seconds}
    if overflowed:
        progress.overflowed += 1
    else:
        job.last = progress.step, step
        progress.loss += values["loss"]
        values |= {"grad_norm": norm_value} if learnt else {"grad_norm": norm_value, UNLEARNT: 1.0}
        if job.loss_scale:
            job.loss_scale.passed()
        if job.spikes and learnt:
            job.spikes.passed(values["loss"], norm_value)
    job.window.add(values, metrics.largest)


def divided(job: Job, step: Step) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the parameters that a step moves, and those that rest in it."""
    trained = [weight for group in job.optimizer.param_groups for weight in group["params"]]
    if not step.only_beside:
        return trained, []
    beside = set(job.accelerator.unwrap_model(job.policy).auxiliary.parameters())
    return [weight for weight in trained if weight in beside], [weight for weight in trained if weight not in beside]


def backward(job: Job, step: Step, whole: StepBatches, number: int, metrics: StepMetrics) -> None:
    """Add the gradient of one batch of a step, and what is logged of it."""
    world, batch = job.accelerator.num_processes, whole.batches[number]
    share = 1 / whole.weight if number < whole.counted else 0.0
    last = number + 1 == len(whole.batches)
    job.ranks.at(place(job.progress.step, step.batches[number]))
    reseed(job.train.seed, job.progress.step, whole.seeds[number])
    with job.spread.backward(job.policy, last=last):
        loss, found = job.loss(batch)
        if job.balance:
            loss, found = job.balance.add_to(loss, found, job.objective.weight(batch))
        total: Tensor = loss * (share * world)  # gradients are averaged over processes, hence `world`
        if last:
            total = total + job.penalty()
        job.accelerator.backward(total * job.loss_scale.scale if job.loss_scale else total)
    metrics.add({"loss": Mean(loss), **found}, share)


def agree_to_stop(job: Job) -> int:
    """Let all processes know what one was told; return the number of a signal that asks for an end, or 0."""
    told = job.signals.received
    signals = [told == SIGINT, told not in (0, SIGINT)]
    interrupted, terminated, stopped = over_processes(job.accelerator, [*signals, bool(job.progress.stop)])
    if stopped:
        job.progress.stop = job.progress.stop or "another process asked for it"
    return SIGINT if interrupted else SIGTERM if terminated else 0
