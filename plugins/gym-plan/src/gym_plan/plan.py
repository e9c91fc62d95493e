"""The plan of a run: memory, disk, work and time, before anything is loaded."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from math import ceil, prod
from typing import Any

from gym_core import Recipe, Train
from gym_plan.auto import check, largest, lightest
from gym_plan.machine import memory_at_hand, room
from gym_plan.memory import Memory, objective_of, predict
from gym_plan.rate import rate
from gym_plan.skeleton import Skeleton, skeleton
from gym_plan.workload import Workload, workload
from gym_torch.batch import Batch
from gym_torch.distributed.strategies import processes_here
from gym_torch.kernels import precision_probe
from gym_torch.loop.job import keeps_best
from gym_torch.model.stored_precisions import stored_dtype
from gym_torch.observer import steps_of


@dataclass(frozen=True)
class Plan:
    """What a run will take."""

    parameters: int
    trainable: int
    adapter: str  #: what an adapter puts where; empty without one
    precision: str
    device: str
    gradient_checkpointing: bool | int | str  #: what layers compute again, found out where it was `auto`
    batch_tokens: int  #: tokens that are computed in the largest batch
    rows: int  #: its shape: rows, and tokens a row
    length: int
    context_parallel_size: int  #: processes that share them; the memory is that of one
    based_on: str
    memory: Memory
    available: int  #: bytes of memory of this machine
    room: int  #: bytes of it that tensors may take, in each process
    processes: int  #: of the run on this machine
    checkpoint_bytes: int  #: of one checkpoint
    checkpoints: int  #: most that are on the disk at once: those kept, and the one being written
    model_bytes: int  #: of what the run makes in the end
    steps: int | None
    tokens: int | None  #: of samples, as a run counts them
    flops_per_token: float  #: that is computed: what several samples of a batch begin with is computed once
    flops_per_second: float  #: of matrix products on this machine
    seconds: float | None  #: at that rate, so a lower bound for the run on this machine

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def plan(recipe: Recipe) -> Plan:
    """Return the plan of a recipe that trains a model of transformers with the loop of gym-torch.

    Raises RecipeError for other recipes, and what locating and building the model raises.
    """
    precision, device = recipe.train.precision, precision_probe.device()
    available = room(device, processes_here(recipe))
    check(recipe.train)
    if recipe.train.gradient_checkpointing == "auto":

        def batch(built: Skeleton) -> Batch:
            return workload(recipe, objective_of(recipe, built.layout), built.path, recipe.train).batch

        policy = lightest(recipe, precision, device, batch, available)
        recipe = replace(recipe, train=recipe.train.model_copy(update={"gradient_checkpointing": policy}))
    built = skeleton(recipe, precision, device)
    train = recipe.train
    if train.batch_tokens == "auto":
        train = train.model_copy(update={"batch_tokens": largest(recipe, built, available)})
    work = workload(recipe, objective_of(recipe, built.layout), built.path, train)
    return _plan(recipe, built, work)


def _plan(recipe: Recipe, built: Skeleton, work: Workload) -> Plan:
    train, batch = recipe.train, work.batch
    found = predict(recipe, built, batch)
    speed = rate(built.model.config.get_text_config().hidden_size, built.precision)
    each = found.flops / found.tokens
    final, exact = (sum(sizes) for sizes in zip(*map(_sizes, built.kept), strict=True))
    return Plan(
        parameters=built.parameters,
        trainable=sum(prod(shape) for shape in built.trained),
        adapter=built.adapted.describe(),
        precision=built.precision,
        device=precision_probe.device_name(),
        gradient_checkpointing=train.gradient_checkpointing,
        batch_tokens=found.tokens,
        rows=batch.tokens.shape[0],
        length=batch.tokens.shape[1],
        context_parallel_size=built.sharing,
        based_on=work.note,
        memory=found.memory,
        available=memory_at_hand(built.device),
        room=room(built.device, processes_here(recipe)),
        processes=processes_here(recipe),
        checkpoint_bytes=exact + found.memory.optimizer,
        checkpoints=_checkpoints(train, work.steps),
        model_bytes=final,
        steps=work.steps,
        tokens=work.tokens,
        flops_per_token=each,
        flops_per_second=speed,
        seconds=work.computed * each / speed if work.computed else None,
    )


def _checkpoints(train: Train, steps: int | None) -> int:
    """Return how many checkpoints are on the disk at most: those kept, the best among them, and the one being written."""
    best = keeps_best(train)
    most = train.keep_last + best + 1
    if steps is None:
        return most
    every = [steps_of(each, steps) for each in (train.save_every, train.eval_every if best else None) if each]
    written = {min(each * number, steps) for each in every for number in range(1, min(ceil(steps / each), most) + 1)}
    return min(most, len(written))


def _sizes(built: Skeleton) -> tuple[int, int]:
    """Return the bytes of the weights a run makes, and of those in a checkpoint, where what trains is in fp32.

    Training a model's own weights writes the whole model; any other adapter writes what it trains.
    """
    if built.adapted.artifact_kind == "adapter":
        trained = sum(weight.nbytes for weight in built.model.parameters() if weight.requires_grad)
        kept = sum(tensor.nbytes for tensor in built.adapted.state().values())
        size = round(built.gradients * kept / trained)  # of all layers, not only of those that the skeleton kept
        return size, size  # both are fp32
    stored = stored_dtype(built.model)
    return built.parameters * stored.itemsize, built.weights
