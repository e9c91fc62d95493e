"""The strategies as a recipe sees them: how a run is spread over processes. Nothing heavy."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, PositiveInt, model_validator

from gym_core import PluginError, Recipe, RecipeError
from gym_core.component import load_object
from gym_core.ranks import Ranks
from gym_optim.config import AdamW
from gym_optim.kinds import Optimizer
from gym_torch.kernels.library_settings import set_libraries
from gym_torch.kinds import TorchStrategy, part


class DDP(TorchStrategy):
    """Every process holds the whole model and works on its share of each step; gradients are summed over processes."""

    target: ClassVar[str] = "gym_torch.distributed.ranks:TorchrunRanks"
    spread: ClassVar[str] = "gym_torch.distributed.ddp:Replicated"

    processes: PositiveInt | None = None
    """Processes to start on this machine, as `--nproc` does; unset, those of torchrun, or one."""
    timeout: Annotated[float, Field(gt=0)] = 300.0
    """Seconds for which the processes wait for one that does not come along; then the run ends and says which."""

    context_parallel_size: PositiveInt = 1
    """Context parallelism: so many processes share the tokens of each row, and each holds the activations of its own. For samples
    that are too long for one; a divisor of the number of processes and of that of attention heads."""

    @model_validator(mode="after")
    def _groups(self) -> Self:
        if self.processes and self.processes % self.context_parallel_size:
            raise ValueError(f"{self.processes} processes cannot be cut into groups of {self.context_parallel_size}")
        return self

    def shards(self) -> bool:
        """Every process holds whole parameters."""
        return False

    def shares_rows(self) -> int:
        """Return how many the recipe says."""
        return self.context_parallel_size

    def starts(self) -> int:
        """Return how many the recipe says."""
        return self.processes or 1

    def build(self, **context: Any) -> Ranks:
        """Meet the other processes; a process alone needs no torch for it."""
        check_groups(self.context_parallel_size, _processes())
        alone = not _several()
        set_libraries()
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
            f"{name} does not declare `spread`, and this run has {_processes()} processes",
            where=f"{type(strategy).__module__}.{name}",
            key="distributed",
            fix="set `spread: ClassVar[str]` to a module:class; docs/kinds.md says what it is called with",
        )


def check_context(recipe: Recipe) -> None:
    """Raise RecipeError where the processes that a recipe or torchrun starts make no groups that share rows."""
    strategy = part(recipe, TorchStrategy)
    if strategy is not None and _several():
        check_groups(strategy.shares_rows(), _processes())


def check_groups(size: int, processes: int) -> None:
    """Raise RecipeError where so many processes cannot be cut into groups of a size."""
    if processes % size:
        raise RecipeError(
            f"{processes} process{'es' * (processes > 1)} cannot be cut into groups of {size}",
            key="distributed.context_parallel_size",
            fix=f"start a multiple of {size}, as with --nproc {size}",
        )


def _processes() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def processes_here(recipe: Recipe) -> int:
    """Return how many processes of a run share this machine: as torchrun says, else as the recipe does."""
    if "WORLD_SIZE" in os.environ:
        return int(os.environ.get("LOCAL_WORLD_SIZE", _processes()))
    strategy = part(recipe, TorchStrategy)
    return strategy.starts() if strategy else 1


def _several() -> bool:
    return _processes() > 1


def sharing(recipe: Recipe) -> int:
    """Return how many of several processes share the tokens of each row."""
    strategy = part(recipe, TorchStrategy) if _several() else None
    return 1 if strategy is None else strategy.shares_rows()


def shards(recipe: Recipe) -> bool:
    """Whether several processes each hold but a part of each parameter."""
    strategy = part(recipe, TorchStrategy) if _several() else None
    return strategy is not None and strategy.shards()
