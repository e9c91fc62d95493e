"""Virtual tokens: what is trained stands before every text, and the model itself is left alone."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt

from gym_core import Adapter


class VirtualTokens(Adapter):
    """Base of what trains virtual tokens, which no weight of a model can compute."""

    starts_unchanged: ClassVar[bool] = False
    merges: ClassVar[bool] = False

    tokens: Annotated[PositiveInt, Field(examples=[4])] = 20
    """Number of virtual tokens."""


class PromptTuning(VirtualTokens):
    """Trains the embeddings of a few virtual tokens that stand before every text. Cannot be merged."""

    target: ClassVar[str] = "gym_adapters.virtual:Prompt"
    paper: ClassVar[str] = "arXiv:2104.08691"

    text: str | None = None
    """Text whose tokens the virtual ones begin as, repeated or cut; without it, tokens drawn from the vocabulary."""


class PrefixTuning(VirtualTokens):
    """Trains keys and values that every token attends to, in every layer, before its own text. Cannot be merged."""

    target: ClassVar[str] = "gym_adapters.virtual:Prefix"
    paper: ClassVar[str] = "arXiv:2101.00190"

    init: Literal["words", "random"] = "words"
    """First values: what the model computes for tokens drawn from its vocabulary (section 7.3 of the paper), or normal noise."""
