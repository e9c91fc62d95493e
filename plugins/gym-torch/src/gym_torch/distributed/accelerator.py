"""The accelerator of a run, and how its strategy distributes the model."""

from __future__ import annotations

from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs

from gym_core import Recipe
from gym_core.component import construct
from gym_optim.promises import promised
from gym_torch.distributed.context_parallel import context_of
from gym_torch.distributed.ddp import Replicated
from gym_torch.kernels import precision_probe
from gym_torch.kinds import TorchStrategy, part


def new_accelerator() -> Accelerator:
    """Return what knows the device and the processes of this run."""
    # The policy casts, and over fp32 weights. Without `cpu`, accelerate does not see several processes on a CPU.
    quick = DistributedDataParallelKwargs(gradient_as_bucket_view=True)
    return Accelerator(mixed_precision="no", cpu=precision_probe.device().type == "cpu", kwargs_handlers=[quick])


def spread_of(recipe: Recipe, accelerator: Accelerator) -> Replicated:
    """Return how the model is laid out. Raises PluginError where a strategy names something else."""
    strategy = part(recipe, TorchStrategy) if accelerator.num_processes > 1 else None
    if strategy is None:
        return Replicated(accelerator)
    spread = promised(construct(strategy.spread, accelerator), Replicated, strategy.spread, "distributed")
    spread.context = context_of(strategy.shares_rows(), accelerator)
    return spread
