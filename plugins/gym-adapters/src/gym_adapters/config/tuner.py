"""What every adapter that peft puts into a model has in common."""

from __future__ import annotations

from typing import Annotated

from gym_core import Adapter, Flat

Names = str | tuple[str, ...]  #: a list, or one string with commas between


class Tuner(Adapter):
    """Trains a little beside some modules of a model, and leaves the model itself alone. `target` is a `Tuned`.

    The class must be importable from the package it belongs to under its own name, and be an entry point by that:
    `gym_adapters:LoRA`. What it makes says so, and is opened again by it.
    """

    modules: Names = "all"
    """Linear layers to adapt, or what they are in, such as `q_proj,mlp`; `all` is every one but the language-model head."""
    extra: Annotated[Names, Flat("additional_target")] = ()
    """Modules trained whole beside the adapter and saved in it, such as `embed_tokens`."""

    def uniform(self) -> bool:
        """No name singles out a layer by its number."""
        return not any(letter.isdigit() for name in (*self.modules, *self.extra) for letter in name)
