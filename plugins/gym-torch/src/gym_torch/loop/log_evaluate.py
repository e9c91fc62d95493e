"""What happens between two optimizer steps: what is due is logged and evaluated."""

from __future__ import annotations

from gym_torch.loop.job import Evaluation, Job
from gym_torch.observer import Progress, gain, steps_of


def tell(job: Job) -> None:
    """Log and evaluate, as far as that is due after the steps taken."""
    train, progress = job.train, job.progress
    asked = due(progress, train.eval_every) if progress.step else train.eval_on_start
    evaluating = job.evaluation and asked and progress.evaluated < progress.step
    if job.window and (evaluating or due(progress, train.log_every)):
        log(job)
    if job.evaluation and evaluating:
        with job.optimizer_config.evaluation_weights(job.optimizer):
            evaluate(job, job.evaluation)


def evaluate(job: Job, evaluation: Evaluation) -> None:
    """Measure the policy on what was held out and tell the observer; where nothing was measured, do nothing.

    What was measured before the first step is no candidate for the best: what trained nothing is not to be kept.
    """
    progress, found = job.progress, job.measured(evaluation)
    if found is None:
        return
    progress.evaluated = progress.step
    record = {f"eval_{name}": value for name, value in found.items()}
    progress.figures.update(record)
    best = found[job.best_by.name]
    if progress.step and gain(best, progress.best, job.best_by.better) > 0:
        progress.best_step, progress.best, progress.best_figures = progress.step, best, record
    job.observer.evaluated(progress, {"step": progress.step, "epoch": progress.epoch, **record})


def log(job: Job) -> None:
    """Tell the observer of the steps since the last line."""
    progress = job.progress
    means, (tokens, seconds) = job.window.take("num_tokens", "seconds")
    names = ("loss", job.measure, job.shown)
    shown = {name: means[name] for name in names if name in means}  # a reward may have nothing to say
    progress.figures = {f"first_{name}": value for name, value in shown.items()} | progress.figures | shown
    record = {"step": progress.step, "epoch": progress.epoch, **means}
    record |= {"learning_rate": job.optimizer.param_groups[0]["lr"], "num_tokens": progress.tokens}
    if job.loss_scale:
        record |= {"loss_scale": job.loss_scale.scale, "overflowed_steps": progress.overflowed}
    job.observer.logged(progress, record | {"tokens_per_second": tokens / max(seconds, 1e-9)})


def due(progress: Progress, every: float | None) -> bool:
    """Whether something that happens every so many steps, or after each such share of all, and at the end, happens now."""
    return progress.over or (
        every is not None and progress.step > 0 and progress.step % steps_of(every, progress.total) == 0
    )
