"""gym-rl: learning from rewards. What a recipe names stands here and in `gym_rl.reward_models`; nothing heavy is imported."""

from __future__ import annotations

from gym_rl.config.base import KLTerm, LossAggMode, PolicyGradient
from gym_rl.config.clipped import ClippedPolicyGradient
from gym_rl.config.group_relative import GroupRelative, ScaleRewards
from gym_rl.config.local_engine import LocalEngineConfig
from gym_rl.config.opo import OPO
from gym_rl.config.ppo import PPO
from gym_rl.config.reinforce_plus_plus import ReinforcePP
from gym_rl.config.reinforce_plus_plus_baseline import ReinforcePPBaseline
from gym_rl.config.remax import ReMax
from gym_rl.config.rloo import RLOO
from gym_rl.environment import Action, Environment, StepResult
from gym_rl.rollout_engine import RolloutEngineConfig

__version__ = "0.1.0"
__all__ = [
    "OPO",
    "PPO",
    "RLOO",
    "Action",
    "ClippedPolicyGradient",
    "Environment",
    "GroupRelative",
    "KLTerm",
    "LocalEngineConfig",
    "LossAggMode",
    "PolicyGradient",
    "ReMax",
    "ReinforcePP",
    "ReinforcePPBaseline",
    "RolloutEngineConfig",
    "ScaleRewards",
    "StepResult",
]
