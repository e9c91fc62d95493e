"""LoRA: a low-rank update that begins at random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import AfterValidator

from gym_adapters.config.base import LowRankOptions, Names, PartOptions, split
from gym_data.location import specific


def _specific(names: Names) -> Names:
    found = tuple(map(specific, split(names)))
    return ",".join(found) if isinstance(names, str) else found


Folders = Annotated[Names, AfterValidator(_specific)]  #: recorded as what a run made, where one is named


class LoRA(PartOptions, LowRankOptions):
    """Trains a low-rank update of each linear layer, and leaves the model itself alone.

        y = W x + scaling B A x        scaling = alpha / rank

    x `[in]` goes into a layer and y `[out]` comes out. W `[out, in]` stays as it is; A `[rank, in]` and B `[out, rank]` train.
    A begins uniform within 1 / sqrt(in) of zero, B as zeros, so that nothing changes at first. Where an embedding is adapted, A
    begins as zeros and B normal. With `dropout` the update alone sees fewer inputs.

    Trains: `rank (out + in)` numbers for a layer `[out, in]`, in fp32 whatever the precision of the base.

    Code: peft's, which is right; several adapters beside one another (`adapter_name_or_path`, `create_new_adapter`) are ours.

    Differs: the paper draws A from a normal distribution, its code and peft from a uniform one. The paper adapts projections of
    attention alone; `all` is every linear layer but the head. peft adds the update of an input embedding to the head too where
    it merges into tied embeddings; here the merged model has two of them.

    On the disk: A and B by peft's names, which peft, vLLM and others load. Merges, in fp32, rounded once. Left out, it leaves
    the base to the bit, so the base is its own reference.

    Not with: a weight that is quantized, where it is merged. Of mixtures whose layers have names that experts once had, such as
    GLM-4 MoE and DeepSeek-V3, peft opens a part of what is saved; Gym opens all of it, and a line says so.
    """

    target: ClassVar[str] = "gym_adapters.tuners.lora:LoraAdapter"

    adapter_name_or_path: Folders = ()
    """Plain LoRA adapters of the model, each by the output of a run that made it, or by its folder: the last goes on training,
    those before it work and stay as they are. The last may have `modules_to_save` too, which are to be named again."""
    create_new_adapter: bool = False
    """Whether all of them stay as they are, and a new one trains beside them."""

    def uniform_layers(self) -> bool:
        """No name singles out a layer by its number, and no file holds all of them."""
        return super().uniform_layers() and not self.adapter_name_or_path

    def begins_with(self) -> Sequence[str]:
        """Return the adapters that are named."""
        return split(self.adapter_name_or_path)
