# The public names with their types, for type checkers; `__init__.py` imports them on first use.
from gym_training_free.api import TrainingFreeGRPO as TrainingFreeGRPO
from gym_training_free.config import GRPOConfig as GRPOConfig
from gym_training_free.config import OpenAI as OpenAI
from gym_training_free.endpoint.price import Price as Price
from gym_training_free.experience.library import Experience as Experience
from gym_training_free.experience.library import ExperienceLibrary as ExperienceLibrary
from gym_training_free.kinds import ChatBackend as ChatBackend

__version__: str
