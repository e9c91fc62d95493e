"""Where the model of a run lies: in one process, or over several as the strategy of the recipe says."""

from __future__ import annotations

from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs

from gym_core import PluginError, Recipe
from gym_core.component import load_object
from gym_torch.distributed.ddp import Replicated
from gym_torch.kinds import TorchStrategy, part
from gym_torch.model import precision_probe


def new_accelerator() -> Accelerator:
    """Return what knows the device and the processes of this run."""
    # The policy casts, and over fp32 weights. Without `cpu`, accelerate does not see several processes on a CPU.
    quick = DistributedDataParallelKwargs(gradient_as_bucket_view=True)
    return Accelerator(mixed_precision="no", cpu=precision_probe.device().type == "cpu", kwargs_handlers=[quick])


def spread_of(recipe: Recipe, accelerator: Accelerator) -> Replicated:
    """Return how the model is laid out. Raises PluginError where a strategy does not say how over several processes."""
    strategy = part(recipe, TorchStrategy) if accelerator.num_processes > 1 else None
    if strategy is None:
        return Replicated(accelerator)
    kind = type(strategy)
    if not kind.spread:
        raise PluginError(
            f"{kind.__name__} does not declare `spread`, and this run has {accelerator.num_processes} processes",
            where=f"{kind.__module__}.{kind.__name__}",
            key="distributed",
            fix="set `spread: ClassVar[str]` to a module:class; docs/kinds.md says what it is called with",
        )
    spread: Replicated = load_object(kind.spread)(accelerator)
    return spread
