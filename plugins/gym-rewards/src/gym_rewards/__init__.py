"""gym-rewards: what judges the completions of a model. Neither torch nor transformers is imported anywhere here."""

from __future__ import annotations

from gym_rewards.reward import Answer, Reward

__version__ = "0.1.0"
__all__ = ["Answer", "Reward"]
