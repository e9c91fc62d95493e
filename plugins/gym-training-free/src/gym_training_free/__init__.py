"""gym-training-free: a model behind an endpoint improves by experience. Neither torch nor numpy is imported anywhere here.

The public names below are imported on first use.
"""

from __future__ import annotations

from gym_core.lazy import lazily

__version__ = "0.1.0"

_HOMES = {
    "gym_training_free.api": "TrainingFreeGRPO",
    "gym_training_free.config": "GRPOConfig OpenAI",
    "gym_training_free.endpoint.price": "Price",
    "gym_training_free.experience.library": "Experience ExperienceLibrary",
    "gym_training_free.kinds": "ChatBackend",
}
__all__, __getattr__, __dir__ = lazily(__name__, _HOMES)
