"""What does not fit together in a recipe is refused by name, each thing as soon as it is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from contextlib import AbstractContextManager

import torch

from gym_core import PluginError, Recipe, RecipeError, Train
from gym_data.kinds import Data
from gym_optim.config import Linear
from gym_optim.kinds import Optimizer, Scheduler
from gym_optim.promises import named, promised
from gym_torch.config import TorchAlgorithm
from gym_torch.console import warn
from gym_torch.distributed.context_parallel import check_model
from gym_torch.distributed.strategies import check_cut, shards, sharing
from gym_torch.kernels import precision_probe
from gym_torch.kinds import Adapter, part
from gym_torch.language_part import in_language_part
from gym_torch.loop import in_backward
from gym_torch.loop.best_metric import KEY
from gym_torch.loop.job import Job, keeps_best
from gym_torch.model.adapted import AdaptedModel
from gym_torch.model.load_balancing import LoadBalancing
from gym_torch.model.loading import LoadedModel
from gym_torch.model.vocabulary import vocabulary_modules
from gym_torch.observer import Observer
from gym_torch.packing import ALONE, Layout


def before_data(config: TorchAlgorithm, recipe: Recipe, model: LoadedModel) -> None:
    """Raise RecipeError for what the algorithm, the optimizer and the model cannot do together."""
    check_cut(recipe)
    check_scaled(model.precision, part(recipe, Optimizer))
    check_model(model, sharing(recipe))
    check_rows(model.layout, shards(recipe))
    check_compiled(model.compile, shards(recipe), precision_probe.device())
    if model.neftune_noise_alpha and config.disable_dropout:
        raise RecipeError(
            "the noise would be in the policy and not in what it is compared with",
            key="model.neftune_noise_alpha",
            fix="leave it out: it is for algorithms without a comparison, such as sft",
        )


def check_scaled(precision: str, optimizer: Optimizer | None) -> None:
    """Raise RecipeError where gradients are used up before it is known whether the scale of the loss was too large for them."""
    if precision == "fp16" and optimizer is not None and optimizer.updates_in_backward():
        raise RecipeError(
            f"{named(optimizer)} works in the backward pass, and fp16 scales the loss: gradients must wait until all are there",
            key="train.precision",
            fix="set `train: {precision: bf16}` or fp32, or another optimizer",
        )


def check_rows(layout: Layout, cut: bool) -> None:
    """Raise RecipeError where processes wait for each other at layers that each passes as often as it has samples."""
    if layout is ALONE and cut:
        raise RecipeError(
            "samples are computed one by one, and fsdp has all processes compute as many at the same time",
            key="distributed",
            fix="set `distributed: ddp`",
        )


def check_compiled(asked: bool | str, cut: bool, device: torch.device) -> None:
    """Raise RecipeError where layers are to be compiled that come to their device in shards alone."""
    if asked is True and cut and device.type != "cpu":
        raise RecipeError(
            f"fsdp brings layers to {device.type} in shards, and layers are not compiled there",
            key="model.compile",
            fix="leave it out, or set `distributed: ddp`",
        )


def watched(balance: LoadBalancing | None, asked: bool | str) -> None:
    """Raise RecipeError where layers are to be compiled whose routers are watched, which nobody sees in compiled code."""
    if asked is True and balance is not None:
        raise RecipeError(
            "experts are balanced by what their routers do, and nobody sees those in compiled layers",
            key="model.compile",
            fix="leave it out, or model.router_aux_loss_coef and `output_router_logits` of the model's configuration",
        )


def evaluation(train: Train, held_out: Sized | None) -> None:
    """Say where nothing is evaluated, and raise RecipeError where the best checkpoint would be found by nothing."""
    asked = {
        "train.eval_every": train.eval_every,
        "train.eval_on_start": train.eval_on_start,
        KEY: train.metric_for_best_model,
    }
    for key in (key for key, value in asked.items() if value and not held_out):
        warn(f"{key} does nothing without a validation split; set `data: {{validation: 0.05}}`")
    if keeps_best(train) and not (train.eval_every and held_out):
        raise RecipeError(
            "the best checkpoint is found by evaluating while training",
            key="train.keep_best" if train.keep_best else "train.load_best_model_at_end",
            fix="set `train: {eval_every: 100}` and `data: {validation: 0.05}`",
        )


def best_metric(job: Job) -> None:
    """Raise RecipeError where evaluations do not give what is to tell the best: one is made where the algorithm does not say."""
    if job.evaluation and not job.best_by.declared:
        job.measured(job.evaluation)


def observers(watching: Sequence[Observer], evaluates: bool) -> None:
    """Raise RecipeError where something would wait for evaluations that never come."""
    waiting = next((each for each in watching if each.needs_evaluations and not evaluates), None)
    if waiting:
        raise RecipeError(
            f"{named(waiting)} looks at evaluations, and nothing is held out to evaluate on",
            key="callbacks",
            fix="set `data: {validation: 0.05}`, or leave it out",
        )


def adapter(adapted: AdaptedModel, model: LoadedModel) -> None:
    """Raise RecipeError where what trains would be saved without embeddings that were added.

    Raises PluginError where the adapter says that training changes nothing.
    """
    state = adapted.state()
    if not (isinstance(state, Mapping) and state and all(isinstance(value, torch.Tensor) for value in state.values())):
        raise PluginError(
            f"{named(adapted)}.state returned {state!r:.60}",
            key="adapter",
            fix="return the tensors that training changes by name, at least one; docs/kinds.md says what they are",
        )
    ends = vocabulary_modules(model.model) if model.grown and adapted.artifact_kind == "adapter" else {}
    if lost := [name for name, module in ends.items() if not adapted.holds(module)]:
        names = ",".join(name.rpartition(".")[2] for name in ends)
        raise RecipeError(
            f"this adapter does not hold the embeddings that are added to its base: {lost[0]} does not train whole",
            key="model.resize_vocab",
            fix=f"set `modules_to_save: {names}`, which lora has; trainable_tokens adds its own: leave resize_vocab out",
        )


def reached(model: LoadedModel, recipe: Recipe) -> None:
    """Raise RecipeError where all that trains is of the parts for images, and none are read."""
    language, data = in_language_part(model.model), part(recipe, Data)
    trained = [name for name, weight in model.model.named_parameters() if weight.requires_grad]
    if trained and not any(map(language, trained)) and not (data and data.reads_media()):
        raise RecipeError(
            f"no row comes to what trains: {trained[0]} is of the part that reads images, and no images are read",
            key="adapter",
            fix="set `data: {media: vision}`, or let the language model train",
        )


def optimizer(config: Optimizer, built: torch.optim.Optimizer, recipe: Recipe, train: Train, processes: int) -> None:
    """Raise RecipeError for what the optimizer, which says so of itself, cannot do; say what it does badly."""
    if config.updates_in_backward():
        in_backward.check(train, processes)
    adapting = part(recipe, Adapter)
    if adapting and adapting.needs_gradients:
        check_gradients_stay(not config.keeps_gradients(), shards(recipe))
    if not config.averages():
        return
    by, weights = f"{named(config)}.evaluation_weights", config.evaluation_weights(built)
    promised(weights, AbstractContextManager, by, "optimizer")  # type: ignore[type-abstract]
    if train.load_best_model_at_end and shards(recipe):
        raise RecipeError(
            "fsdp leaves no process what an optimizer that averages would make of its best checkpoint",
            key="train.load_best_model_at_end",
            fix="set `distributed: ddp`, or leave it out",
        )
    if (part(recipe, Scheduler) or Linear()).ends_at != 1.0:
        warn("the average of this optimizer stands in for a falling rate, and the rate falls; set scheduler: constant")


def check_gradients_stay(let_go: bool, cut: bool) -> None:
    """Raise RecipeError where an adapter that looks at the gradients of each step finds not all, or only parts of them."""
    for found, why, key, fix in (
        (let_go, "an optimizer that works in the backward pass leaves no gradients", "optimizer", "optimizer: adamw"),
        (cut, "fsdp leaves each process a part of the gradients", "distributed", "distributed: ddp"),
    ):
        if found:
            raise RecipeError(f"{why}, and this adapter looks at them in every step", key=key, fix=f"set {fix}")
