"""gym-torch: the engine. Its components and kinds stand here; nothing heavy is imported until one of them is built.

The public names below are imported on first use, so that a component of somebody else's costs no more than its kind.
"""

from __future__ import annotations

from gym_core.lazy import lazily
from gym_torch.log_filters import drop_log_messages

__version__ = "0.1.0"
drop_log_messages()  # before anything below imports transformers, which imports torchao where it is installed

_HOMES = {
    "gym_torch.config": "EarlyStopping TorchAlgorithm Transformers",
    "gym_torch.distributed.strategies": "DDP FSDP",
    "gym_torch.kinds": "Adapter KernelLibrary LoadTimeQuantizer TorchBackend TorchStrategy",
    "gym_torch.planners": "Planner",
}
__all__, __getattr__, __dir__ = lazily(__name__, _HOMES)
