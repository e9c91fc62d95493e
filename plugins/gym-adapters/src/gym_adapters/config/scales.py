"""Trains the few numbers by which a model scales what it computes."""

from __future__ import annotations

from typing import ClassVar

from gym_adapters.config.tuner import Names, Tuner


class IA3(Tuner):
    """Trains a factor for each key, each value, and each hidden unit of the feed-forward layers."""

    target: ClassVar[str] = "gym_adapters.scales:Ia3"
    paper: ClassVar[str] = "arXiv:2205.05638"

    modules: Names = "all"
    """Linear layers whose outputs are scaled; `all` is the projections to keys, to values, and out of the feed-forward layers."""
    inputs: Names = "all"
    """Those among `modules` whose inputs are scaled in place of the outputs; `all` is those out of the feed-forward layers."""


class LNTuning(Tuner):
    """Trains the weights of the normalization layers, and nothing else."""

    target: ClassVar[str] = "gym_adapters.scales:LnTuning"
    paper: ClassVar[str] = "arXiv:2312.11420"

    modules: Names = "all"
    """Normalization layers to train, such as `input_layernorm`; `all` is every one."""
