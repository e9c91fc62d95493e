"""LLaMA-Pro: new blocks between those of the model."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt

from gym_torch.kinds import Adapter


class LLaMAPro(Adapter):
    """Puts new blocks between those of the model, which change nothing at first, and trains them alone: a larger model.

        h = x + Wo attention(norm(x))
        y = h + Wd feed_forward(norm(h))          a block; in a new one Wo = 0 and Wd = 0 at first, so y = x

    After each of `blocks` equal parts of the model comes a copy of the last block there, with zeros where it writes to the
    residual stream, weights and biases (section 3.2). The model itself stays as it is.

    Trains: every weight of the new blocks, in fp32; nothing is drawn at random.

    Code: ours; peft has nothing of the kind. Lists of the configuration with an entry for each layer are laid out anew, and
    each layer has a cache of its own.

    On the disk: a plain model with more layers, which transformers loads. `freeze` with `trainable_layers: 8` and
    `spread: true` goes on training eight such blocks. Left out, it leaves the base to the bit, so the base is its own reference.

    Not with: a number of blocks that does not divide the layers; blocks whose projections have no name known here (o_proj,
    down_proj, c_proj, ...); a model that tells by their numbers which layers are dense, where a new block moves those behind it.
    """

    target: ClassVar[str] = "gym_adapters.tuners.llama_pro:LlamaProAdapter"
    saves_model: ClassVar[bool] = True

    blocks: Annotated[PositiveInt, Field(examples=[1])] = 8
    """Number of new blocks; must divide the number of layers: one comes after each equal part of the model."""
