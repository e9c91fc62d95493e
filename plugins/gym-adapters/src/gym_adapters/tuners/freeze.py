"""Partial training: the last or first layers of a model, or some modules of them."""

from __future__ import annotations

from transformers import PreTrainedModel

import gym_torch.model.adapted
from gym_adapters.config.base import split
from gym_adapters.config.freeze import Freeze as Options
from gym_adapters.target_modules import require, within
from gym_core import GymError
from gym_torch.model.decoder_layers import layers_of


class FreezeAdapter(gym_torch.model.adapted.Full):
    """Trains what the options name; everything else about it is training a model's own weights."""

    def __init__(self, config: Options, model: PreTrainedModel, seed: int = 0) -> None:
        """Freeze all but the named modules. Raises `GymError` when a name is not in the model."""
        layers = layers_of(model)[2]
        count, prefix = len(layers), next(name for name, module in model.named_modules() if module is layers)
        if abs(config.trainable_layers) > count:
            raise GymError(
                f"the model has {count} layers, not {abs(config.trainable_layers)}",
                key="adapter.trainable_layers",
                fix=f"set at most {count}, or adapter: full",
            )
        numbers = (
            range(count)[-config.trainable_layers :] if config.trainable_layers > 0 else range(-config.trainable_layers)
        )
        if config.spread:
            numbers = _spread(count, abs(config.trainable_layers))
        chosen = [f"{prefix}.{number}." for number in numbers]
        modules, extra = split(config.trainable_modules), split(config.extra_modules)
        paths = [name.rpartition(".")[0] for name, _ in model.named_parameters(remove_duplicate=False)]
        inside = [path.removeprefix(chosen[0]) for path in paths if path.startswith(chosen[0])]
        outside = [path for path in paths if not path.startswith(f"{prefix}.")]
        require(() if modules == ("all",) else modules, inside, "adapter.trainable_modules")
        require(extra, outside, "adapter.extra_modules")

        def in_layers(name: str) -> bool:
            start = next((layer for layer in chosen if name.startswith(layer)), None)
            if start is None:
                return False
            return modules == ("all",) or any(within(name.removeprefix(start), module) for module in modules)

        extras = {
            id(weight)
            for name, weight in model.named_parameters(remove_duplicate=False)
            if not name.startswith(f"{prefix}.") and any(within(name, module) for module in extra)
        }
        names = {name for name, weight in model.named_parameters() if in_layers(name) or id(weight) in extras}
        super().__init__(config, model, seed, trained=names.__contains__)


def _spread(count: int, parts: int) -> range:
    """Return the numbers of the last layers of equal parts."""
    if count % parts:
        why = f"{count} layers are not {parts} equal parts"
        raise GymError(why, key="adapter.trainable_layers", fix="set the number of blocks that were put in")
    return range(count // parts - 1, count, count // parts)
