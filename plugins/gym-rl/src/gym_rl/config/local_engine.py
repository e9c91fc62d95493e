"""Options of the local engine, which generates with the model in training. Imports nothing heavy."""

from __future__ import annotations

from typing import ClassVar

from pydantic import ByteSize, PositiveInt

from gym_rl.rollout_engine import RolloutEngineConfig


class LocalEngineConfig(RolloutEngineConfig):
    """Generates with the model that is trained, in its own process. A prompt that several completions share is computed once."""

    target: ClassVar[str] = "gym_rl.local_engine:LocalEngine"
    takes_inputs: ClassVar[bool] = True

    max_batch: PositiveInt = 64
    """Most completions under way at once: more is faster, and takes memory for their keys and values."""
    prefix_cache_bytes: ByteSize = ByteSize(2**30)
    """Memory for keys and values of completions of several turns, such as `2GB`, so that each turn computes only what is new; 0
    keeps none."""
