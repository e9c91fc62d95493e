"""Reward models as rewards. Nothing heavy is imported."""

from __future__ import annotations

from gym_rl.reward_models.config import Model, ProcessModel

__all__ = ["Model", "ProcessModel"]
