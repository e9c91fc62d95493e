"""Loads the model of a run, once it is certain that the run can go on from there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gym_core import Run
from gym_torch import planners
from gym_torch.distributed.strategies import check_cut
from gym_torch.model import loading
from gym_torch.model.loading import LoadedModel

if TYPE_CHECKING:
    from gym_torch.config import Transformers


def load(config: Transformers, run: Run) -> LoadedModel:
    """Load the model that the recipe names, on the CPU.

    Raises RecipeError where the optimizer cannot work on what the strategy leaves of parameters, PluginError where `auto` needs a
    planner that is not there, and what `gym_torch.model.loading.load` raises.
    """
    check_cut(run.recipe)
    planners.check(run)
    return loading.load(config, run)
