"""What is said of a run on the screen and in `run.json`: what it trains, and how it went."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import torch

from gym_core import Artifact, Run
from gym_data.provenance import read_maker
from gym_torch import planners
from gym_torch.console import say
from gym_torch.kernels import precision_probe
from gym_torch.kernels.native_code import features
from gym_torch.loop.job import Job
from gym_torch.loop.prepared_data import Prepared
from gym_torch.memory.memory_meter import Meter
from gym_torch.model.loading import LoadedModel
from gym_torch.policy import Policy
from gym_torch.quantization.weights import stored_modules


def tell_start(job: Job, policy: Policy[Any], samples: str) -> None:
    """Say how much is trained, on what and for how long."""
    trained = sum(weight.numel() for weight in policy.parameters() if weight.requires_grad)
    every = sum(weight.numel() for weight in policy.parameters())
    every += sum(module.numbers for module in stored_modules(policy).values())
    world, sharing = job.accelerator.num_processes, job.spread.sharing
    say(
        f"training {trained:,} of {every:,} parameters on {samples}, "
        f"{job.progress.total:,} steps"
        + f", {world} processes" * (world > 1)
        + f", of which {sharing} share each row" * (sharing > 1)
    )


def record_start(run: Run, job: Job, fingerprint: str, conditions: Mapping[str, Any]) -> None:
    """Write down, before the first step, what decides every number beside the recipe: data, models, machine and code.

    `fingerprint` is that of the data, `conditions` what must be the same when the run goes on. Who carries the run out once more
    (`gym reproduce`) compares all of it.
    """
    named = (re.split("[.:]", path)[0] for item in run.recipe.resolved for path in (item.config, item.target) if path)
    run.record.update(
        data={"fingerprint": fingerprint},
        conditions=conditions,
        machine=machine() | {"processes": job.accelerator.num_processes},
        code={package: read_maker(package)["code"] for package in sorted({"gym_core", "gym_torch", *named})},
    )


def machine() -> dict[str, Any]:
    """Return what of this machine decides the last digits of numbers: device, threads, and instructions of the processor."""
    return {
        "device": precision_probe.device_name(),
        "threads": torch.get_num_threads(),
        "instructions": sha256(features()).hexdigest()[:16],
    }


def record(run: Run, job: Job, model: LoadedModel, data: Prepared, meter: Meter, planned: planners.PlannedRun) -> None:
    """Write down how it went, in the main process."""
    progress = job.progress
    if not job.accelerator.is_main_process:
        return
    run.record.update(
        training={
            **progress.summary(),
            "seconds": round(progress.seconds, 3),
            "skipped": progress.skipped,
            "overflowed": progress.overflowed,
            "best": {"step": progress.best_step, f"eval_{job.best_by.name}": progress.best}
            if progress.best is not None
            else None,
            "precision": model.precision,
            "device": precision_probe.device_name(),
            "processes": job.accelerator.num_processes,
            "context_parallel_size": job.spread.sharing,
        },
        data={"fingerprint": data.fingerprint, "report": data.report},
        memory={
            "measured_bytes": meter.peak(),
            "predicted_bytes": planners.predicted_bytes(planned, job.train, progress.seconds),
        },
    )


def tell_end(job: Job, artifact: Artifact) -> None:
    """Say how it went."""
    progress, shown = job.progress, job.shown
    speed = f"{progress.tokens / max(progress.seconds, 1e-9):,.0f} tokens/s"
    say(f"{progress.step:,} steps, {progress.tokens:,} tokens in {progress.seconds:.1f} s ({speed})")
    if progress.stop:
        say(f"ended early: {progress.stop}")
    if progress.overflowed:
        say(f"{progress.overflowed:,} of them updated nothing: in fp16 their gradients did not bear `train.loss_scale`")
    figures = {name: f"{value:.4f}" for name, value in progress.figures_of(artifact).items()}
    if shown in figures:
        held_out = f", held out {figures[f'eval_{shown}']}" if f"eval_{shown}" in figures else ""
        first, last = figures[f"first_{shown}"], figures[shown]
        # A run with a single line of its log has nothing to compare.
        say(f"{shown} {last}{held_out}" if first == last else f"{shown} {first} -> {last}{held_out}")
    say(f"{artifact.kind}: {artifact.path}")
