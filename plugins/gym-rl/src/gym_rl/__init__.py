"""gym-rl: learning from rewards. What a recipe names stands here and in `gym_rl.rewards`; nothing heavy is imported."""

from __future__ import annotations

from gym_rl.reward import Answer, Reward

__version__ = "0.1.0"
__all__ = ["Answer", "Reward"]
