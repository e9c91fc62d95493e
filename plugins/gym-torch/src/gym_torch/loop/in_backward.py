"""What an optimizer in the backward pass, which sees one gradient at a time, gets wrong."""

from __future__ import annotations

from gym_core import Recipe, RecipeError, Train
from gym_optim.kinds import Optimizer
from gym_torch.kinds import part


def check_recipe(recipe: Recipe) -> None:
    """Raise RecipeError where a recipe asks for what its optimizer cannot do; how many processes there are a run knows."""
    if (optimizer := part(recipe, Optimizer)) and optimizer.updates_in_backward():
        check(recipe.train, processes=1)


def check(train: Train, processes: int) -> None:
    """Raise RecipeError for what an optimizer in the backward pass, which sees one gradient at a time, gets wrong."""
    wrong = {
        "train.accumulate": (train.accumulate > 1, "sum gradients of several passes", "train.accumulate: 1"),
        "train.max_grad_norm": (train.max_grad_norm > 0, "clip by the norm of all gradients", "train.max_grad_norm: 0"),
        "train.loss_spike": (
            train.loss_spike is not None,
            "leave out an update by its gradient",
            "train.loss_spike: null",
        ),
        "distributed": (processes > 1, "average gradients over processes", "--nproc 1"),
    }
    for key, (found, why, fix) in wrong.items():
        if found:
            raise RecipeError(f"an optimizer in the backward pass cannot {why}", key=key, fix=f"set {fix}")
