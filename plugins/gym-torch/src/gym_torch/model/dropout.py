"""Dropout switched off, for losses that compare: two passes over the same tokens differ then by their weights alone.

What switches a part of a model off at random in training alone would stand in the policy and not in what it is compared with.
"""

from __future__ import annotations

from torch import nn

from gym_torch.console import say

RANDOM = ("drop", "jitter")  #: in the names of what transformers' layers and adapters scale their random numbers by


def disable_dropout(model: nn.Module) -> None:
    """Set every dropout of a model to 0, in layers of their own and in numbers of other layers; say so where there was one."""
    found = False
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            found, module.p = found or module.p > 0, 0.0
        for name, value in list(vars(module).items()):
            if isinstance(value, float) and value > 0 and any(part in name.lower() for part in RANDOM):
                setattr(module, name, 0.0)
                found = True
    if found:
        say("dropout is off: the loss compares log-probabilities, and chance would stand on one side alone")
