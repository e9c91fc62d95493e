"""Disables dropout for losses that compare a policy with a reference: passes then differ by their weights only.

What switches a part of a model off at random in training alone would stand in the policy and not in what it is compared with.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from gym_torch.console import say

RANDOM = ("drop", "jitter")  #: in the names of what transformers' layers and adapters scale their random numbers by


def dropouts(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Yield the modules that drop out, and the name of the number that says how much."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            yield module, "p"
        for name, value in vars(module).items():
            if isinstance(value, float) and value > 0 and any(part in name.lower() for part in RANDOM):
                yield module, name


def skipping(model: nn.Module) -> tuple[str, float] | None:
    """Return the name and the number by which a model leaves out whole layers at random (LayerDrop); None where it does not."""
    found = (
        (name, float(getattr(module, name))) for module, name in dropouts(model) if name.lower().endswith("layerdrop")
    )
    return next(found, None)


def without_dropout(model: nn.Module) -> bool:
    """Set every dropout of a model to 0, in layers of their own and in numbers of other layers; return whether there was one."""
    found = list(dropouts(model))
    for module, name in found:
        setattr(module, name, 0.0)
    return bool(found)


def disable_dropout(model: nn.Module) -> None:
    """Set every dropout of a model to 0, and say so where there was one."""
    if without_dropout(model):
        say("dropout is off: the loss compares log-probabilities, and chance would stand on one side alone")
