"""The training loop, the only one there is: every algorithm runs through it with its objective.

It knows neither recipes nor files. One optimizer step: seed, collate, agree on the denominator, forward and backward
over each batch, clip, check, update.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from signal import SIGINT, SIGTERM

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn

from gym_core import DataError, Interrupted, Optimizer, Train
from gym_core.ranks import Ranks
from gym_torch.batch import Example
from gym_torch.distributed.ddp import Replicated
from gym_torch.loop.nonfinite import check_weights, explain
from gym_torch.loop.signals import Signals
from gym_torch.model.load_balancing import Balance
from gym_torch.model.trained_part import TrainedPart
from gym_torch.objective import Objective
from gym_torch.observer import Observer, Progress, gain
from gym_torch.source import Source, Step

Evaluation = Callable[["Job"], Mapping[str, float] | None]
"""Measures the policy on what was held out; the same in every process. None where a signal, or the samples, left nothing."""


UNLEARNT = "steps_without_update"  #: share of the steps that had nothing to learn from, among those that say so


@dataclass
class Job:
    """Everything the loop works with."""

    train: Train
    accelerator: Accelerator
    ranks: Ranks
    spread: Replicated  #: how the policy lies over the processes
    policy: nn.Module  #: a `Policy`, as `spread` wraps it
    objective: Objective
    optimizer: torch.optim.Optimizer
    optimizer_config: Optimizer  #: what `optimizer` was built from, which says what it can do
    factor: Callable[[int], float]  #: learning-rate factor after so many steps
    source: Source
    evaluation: Evaluation | None  #: None where nothing was held out
    observer: Observer
    save: Callable[[], None]  #: write a checkpoint of the state as it is
    signals: Signals
    progress: Progress
    measure: str = "loss"  #: what training improves
    better: str = "lower"  #: which way: `lower` or `higher`
    balance: Balance | None = None  #: of the experts of the policy, whose loss is added to that of each batch
    parts: Sequence[TrainedPart] = ()  #: the adapted model, and what trains beside it
    window: dict[str, tuple[float, int]] = field(default_factory=dict)  #: sums since the last log line, and of how many
    saved: int = -1  #: step of the last checkpoint
    last: tuple[int, Step] | None = None  #: the last step that updated the weights in this process, and its number


def run(job: Job) -> None:
    """Train from where `job.progress` stands to the end.

    Raises Interrupted after a signal, when a checkpoint is written; DataError when a step has nothing to learn
    from; GymError at the first loss or gradient that is not finite.
    """
    train, progress = job.train, job.progress
    steps = job.source.steps(progress.step, job.accelerator.process_index, job.accelerator.num_processes)
    peaks = [group["initial_lr"] for group in job.optimizer.param_groups]
    job.observer.started(progress)
    while True:
        # What is due after a step comes first in the next round: a resumed run does what was left undone.
        evaluating = job.evaluation and progress.evaluated < progress.step and _due(progress, train.eval_every)
        if job.window and (evaluating or _due(progress, train.log_every)):
            _log(job)
        if job.evaluation and evaluating:
            with job.optimizer_config.evaluation_weights(job.optimizer):
                evaluate(job, job.evaluation)
        asked = _agree_to_stop(job)
        best = train.keeps_best and progress.best_step == progress.step
        if (asked or best or _due(progress, train.save_every)) and job.saved != progress.step:
            # A run must be able to go back to any checkpoint.
            check_weights(job.accelerator.unwrap_model(job.policy), job.last, train.skip_steps)
            job.observer.saving(progress)
            job.save()
            job.saved = progress.step
        if asked:
            raise Interrupted(asked)
        if progress.over:
            return
        job.ranks.at("")  # a source may sample and judge its steps first, which takes its time
        step = next(steps)
        if progress.step + 1 in train.skip_steps:
            skip(job, step)
            job.observer.stepped(progress)
        elif step.idle:
            rest(job, step)
            job.observer.stepped(progress)
        elif optimizer_step(job, step, [peak * job.factor(progress.step) for peak in peaks]):
            job.observer.stepped(progress)


def skip(job: Job, step: Step) -> None:
    """Let a step go by without an update: the schedule goes on, and its samples are written down."""
    progress = job.progress
    progress.step, progress.epoch = progress.step + 1, step.epoch
    progress.skipped.append(progress.step)
    counted = step.batches[: len(step.batches) - step.spare]
    names = gather_object([example.id for batch in counted for example in batch])
    job.observer.skipped(progress, {"step": progress.step, "epoch": progress.epoch, "skipped": names})


def rest(job: Job, step: Step) -> None:
    """Let a step go by that has nothing to learn from: weights and optimizer stay as they are, the schedule goes on."""
    progress = job.progress
    progress.step, progress.epoch, progress.idle = progress.step + 1, step.epoch, progress.idle + 1
    _remember(job, {"loss": 0.0, "grad_norm": 0.0, "tokens": 0.0, "seconds": 0.0, **step.metrics, UNLEARNT: 1.0})


def optimizer_step(job: Job, step: Step, rates: Sequence[float]) -> bool:
    """Take one optimizer step; return False, with the model untouched, when a signal came in between.

    Where the gradient is 0 there was nothing to learn from, and momentum and decay move nothing: weights and optimizer stay as
    they are, as in `rest`. An optimizer in the backward pass, which never sees the whole gradient, is the exception.
    """
    began = time.monotonic()
    train, progress, world = job.train, job.progress, job.accelerator.num_processes
    in_backward = job.optimizer_config.updates_in_backward()
    # Each batch is seeded by its number in the whole step, so dropout does not depend on which process has it.
    seeds = range(job.accelerator.process_index, world * len(step.batches), world)
    batches = []
    for seed, examples in zip(seeds, step.batches, strict=True):
        job.ranks.at(place(progress.step, examples))
        reseed(train.seed, progress.step, seed)
        batches.append(job.objective.collate(examples))
    counted = batches[: len(batches) - step.spare]
    sizes = [
        (job.objective.weight(batch), batch.size, len(examples))
        for batch, examples in zip(counted, step.batches, strict=False)
    ]
    weight, tokens, samples = over_processes(
        job.accelerator, [sum(column) for column in zip((0.0, 0, 0), *sizes, strict=True)]
    )
    if not weight:
        names = [name for batch in batches for name in batch.ids]
        raise DataError(f"step {progress.step + 1} has nothing to learn from: {', '.join(names[:5])}", key="data")
    for group, rate in zip(job.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    sums: dict[str, Tensor] = {}
    for number, (seed, batch) in enumerate(zip(seeds, batches, strict=True), start=1):
        share = 1 / weight if number <= len(counted) else 0.0
        job.ranks.at(place(progress.step, step.batches[number - 1]))
        reseed(train.seed, progress.step, seed)
        with job.spread.backward(job.policy, last=number == len(batches)):
            loss, metrics = job.objective.loss(job.policy, batch.to(job.accelerator.device))
            if job.balance:
                loss, metrics = job.balance.beside(loss, metrics, job.objective.weight(batch))
            total = loss * (share * world)  # gradients are averaged over processes, hence `world`
            if number == len(batches):
                total = total + sum(part.penalty() for part in job.parts)
            job.accelerator.backward(total)
        add(sums, {"loss": loss, **metrics}, share, job.objective.largest)
        if job.signals.received and world == 1 and not in_backward:
            job.optimizer.zero_grad()
            return False
    trained = [weight for group in job.optimizer.param_groups for weight in group["params"]]
    norm = job.spread.clip(trained, train.max_grad_norm)
    # The one wait for the device in a step: nothing is updated before the numbers are known to be finite.
    *local, norm_value = torch.cat([value.flatten() for value in (*sums.values(), norm)]).tolist()
    values = together(job, sums, local)
    if not all(map(math.isfinite, [*values.values(), norm_value])):
        policy = job.accelerator.unwrap_model(job.policy)
        check_weights(policy, job.last, train.skip_steps)
        raise explain(policy, job.objective, step, progress.step + 1, train.skip_steps, partial(_gathered, job))
    learnt = norm_value > 0 or in_backward
    if learnt:
        job.optimizer.step()
        for part in job.parts:
            part.after_step(progress.step + 1, progress.total)
    job.optimizer.zero_grad()
    progress.step, progress.epoch = progress.step + 1, step.epoch
    job.last = progress.step, step
    progress.tokens, progress.samples = progress.tokens + int(tokens), progress.samples + int(samples)
    progress.loss += values["loss"]
    seconds = time.monotonic() - began
    progress.seconds += seconds
    values |= step.metrics
    values |= {"grad_norm": norm_value, "tokens": tokens, "seconds": seconds}
    _remember(job, values if learnt else values | {UNLEARNT: 1.0})
    return True


def evaluate(job: Job, evaluation: Evaluation) -> None:
    """Measure the policy on what was held out and tell the observer; where nothing was measured, do nothing."""
    progress, found = job.progress, evaluation(job)
    if found is None:
        return
    progress.evaluated = progress.step
    record = {f"eval_{name}": value for name, value in found.items()}
    progress.figures.update(record)
    if gain(found[job.measure], progress.best, job.better) > 0:
        progress.best_step, progress.best = progress.step, found[job.measure]
    job.observer.evaluated(progress, {"step": progress.step, "epoch": progress.epoch, **record})


def reseed(seed: int, step: int, number: int) -> None:
    """Start the random numbers of a batch of a step anew: dropout does not depend on what ran before, nor on where."""
    digest = hashlib.blake2b(f"{seed}/{step}/{number}".encode(), digest_size=8).digest()
    torch.manual_seed(int.from_bytes(digest, "big") >> 1)


def _remember(job: Job, values: Mapping[str, float]) -> None:
    """Add what is said of a step to what the next line of the log says."""
    for name, value in values.items():
        before, count = job.window.get(name, (0.0, 0))
        largest = name in job.objective.largest
        job.window[name] = (max(before, value) if count else value, 1) if largest else (before + value, count + 1)


def _log(job: Job) -> None:
    progress, window = job.progress, dict(job.window)
    job.window.clear()
    (tokens, _), (seconds, _) = window.pop("tokens"), window.pop("seconds")
    means = {
        name: total / count for name, (total, count) in window.items()
    }  # a source need not say everything each step
    shown = {name: means[name] for name in ("loss", job.measure)}
    progress.figures = {f"first_{name}": value for name, value in shown.items()} | progress.figures | shown
    record = {"step": progress.step, "epoch": progress.epoch, **means}
    record |= {"learning_rate": job.optimizer.param_groups[0]["lr"], "tokens": progress.tokens}
    job.observer.logged(progress, record | {"tokens_per_second": tokens / max(seconds, 1e-9)})


def _due(progress: Progress, every: int | None) -> bool:
    """Whether something that happens every so many steps, and at the end, happens now."""
    return progress.over or (every is not None and progress.step > 0 and progress.step % every == 0)


def _agree_to_stop(job: Job) -> int:
    """Let all processes know what one was told; return the number of a signal that asks for an end, or 0."""
    told = job.signals.received
    signals = [told == SIGINT, told not in (0, SIGINT)]
    interrupted, terminated, stopped = over_processes(job.accelerator, [*signals, bool(job.progress.stop)])
    if stopped:
        job.progress.stop = job.progress.stop or "another process asked for it"
    return SIGINT if interrupted else SIGTERM if terminated else 0


def add(sums: dict[str, Tensor], values: Mapping[str, Tensor], share: float, largest: Collection[str] = ()) -> None:
    """Add a share of each value to the sum of its name; of what `largest` names, keep the larger."""
    for name, value in values.items():
        found = value.detach().float()
        if name in largest:
            sums[name] = torch.maximum(sums[name], found) if name in sums else found
        else:
            sums[name] = sums[name] + found * share if name in sums else found * share


def together(job: Job, sums: Mapping[str, Tensor], local: Sequence[float], weight: float = 1.0) -> dict[str, float]:
    """Return the metrics of all processes, by the names of `sums`; `local` are the numbers in it, one after another.

    A sum is divided by `weight`, one that comes with how many it is the sum of by that. A mean of nothing is left out: it has
    no value, and any that it were given would be taken for one.
    """
    every, largest = iter(over_processes(job.accelerator, local)), job.objective.largest & sums.keys()
    found = dict[str, float]()
    for name, value in sums.items():
        total = next(every)
        count = next(every) if value.numel() == 2 else 1.0 if name in largest else weight
        if count:
            found[name] = total / count
    if largest and job.accelerator.num_processes > 1:
        own = torch.stack([sums[name] for name in sorted(largest)])
        found |= zip(sorted(largest), job.accelerator.gather(own[None]).amax(0).tolist(), strict=True)
    return found


def place(step: int, examples: Sequence[Example], what: str = "step") -> str:
    """Name a batch."""
    names = [example.id for example in examples[:4]]
    more = f" and {len(examples) - 4} more" if len(examples) > 4 else ""
    return f"{what} {step + (what == 'step')}, samples {', '.join(names)}{more}"


def _gathered(job: Job, values: Sequence[str]) -> list[str]:
    """Join the lists of all processes."""
    found: list[str] = gather_object(list(values)) if job.accelerator.num_processes > 1 else list(values)
    return found


def over_processes(accelerator: Accelerator, values: Sequence[float]) -> list[float]:
    """Sum each number over all processes."""
    if accelerator.num_processes == 1:
        return list(values)
    tensor = torch.tensor(values, dtype=torch.float64, device=accelerator.device)
    found: list[float] = accelerator.reduce(tensor, "sum").tolist()
    return found
