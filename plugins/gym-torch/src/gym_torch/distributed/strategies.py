"""The strategies as a recipe sees them: how a run is spread over processes. Nothing heavy."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field, PositiveInt

from gym_core import PluginError, Recipe, RecipeError
from gym_core.component import load_object
from gym_core.ranks import Ranks
from gym_optim.config import AdamW
from gym_optim.kinds import Optimizer
from gym_torch.kinds import TorchStrategy, part
from gym_torch.openmp import wait_passively


class DDP(TorchStrategy):
    """Every process holds the whole model and works on its share of each step; gradients are summed over processes."""

    target: ClassVar[str] = "gym_torch.distributed.ranks:Joined"
    spread: ClassVar[str] = "gym_torch.distributed.ddp:Replicated"

    processes: PositiveInt | None = None
    """Processes to start on this machine, as `--nproc` does; unset, those of torchrun, or one."""
    timeout: Annotated[float, Field(gt=0)] = 300.0
    """Seconds for which the processes wait for one that does not come along; then the run ends and says which."""

    def shards(self) -> bool:
        """Every process holds whole parameters."""
        return False

    def build(self, **context: Any) -> Ranks:
        """Meet the other processes; a process alone needs no torch for it."""
        alone = int(os.environ.get("WORLD_SIZE", "1")) == 1
        wait_passively()
        ranks: Ranks = Ranks() if alone else super().build(**context)
        return ranks

    def launch(self, arguments: Sequence[str]) -> int | None:
        """Start the processes, unless this is one of them or one is enough; return the exit code."""
        if "RANK" in os.environ or self.processes in (None, 1):
            return None
        code: int = load_object("gym_torch.distributed.launcher:launch")(self, arguments)
        return code


class FSDP(DDP):
    """Weights, gradients and optimizer state are cut into shards, one for each process (torch `fully_shard`)."""

    spread: ClassVar[str] = "gym_torch.distributed.fsdp:Sharded"

    def shards(self) -> bool:
        """Every process holds a part of each."""
        return True


def check_cut(recipe: Recipe) -> None:
    """Raise RecipeError where several processes would each hold a part of parameters that the optimizer must see whole."""
    if not shards(recipe):
        return
    if not (part(recipe, Optimizer) or AdamW()).elementwise():
        name = next(item.name for item in recipe.resolved if item.path == ("optimizer",))
        raise RecipeError(
            f"{name} needs whole parameters, and fsdp cuts them up",
            key="optimizer",
            fix="set distributed: ddp, or an optimizer that works elementwise: adamw, lion, sgd",
        )


def check_spread(recipe: Recipe) -> None:
    """Raise PluginError where a strategy does not say how a model lies over the processes that there are."""
    strategy = part(recipe, TorchStrategy) if _several() else None
    if strategy is not None and not strategy.spread:
        name = type(strategy).__name__
        raise PluginError(
            f"{name} does not declare `spread`, and this run has {os.environ['WORLD_SIZE']} processes",
            where=f"{type(strategy).__module__}.{name}",
            key="distributed",
            fix="set `spread: ClassVar[str]` to a module:class; docs/kinds.md says what it is called with",
        )


def _several() -> bool:
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def shards(recipe: Recipe) -> bool:
    """Whether several processes each hold but a part of each parameter."""
    strategy = part(recipe, TorchStrategy) if _several() else None
    return strategy is not None and strategy.shards()
