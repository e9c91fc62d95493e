# The public names with their types, for type checkers; `__init__.py` imports them on first use.
from gym_torch.config import EarlyStopping as EarlyStopping
from gym_torch.config import TorchAlgorithm as TorchAlgorithm
from gym_torch.config import Transformers as Transformers
from gym_torch.distributed.strategies import DDP as DDP
from gym_torch.distributed.strategies import FSDP as FSDP
from gym_torch.kinds import Adapter as Adapter
from gym_torch.kinds import KernelLibrary as KernelLibrary
from gym_torch.kinds import TorchBackend as TorchBackend
from gym_torch.kinds import TorchStrategy as TorchStrategy
from gym_torch.planners import Planner as Planner

__version__: str
