"""Single tokens: those of a new vocabulary, or some that a model has not learnt well."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from gym_core import Adapter


class TrainableTokens(Adapter):
    """Trains the rows of some tokens in the embeddings, and in the head, and nothing else."""

    target: ClassVar[str] = "gym_adapters.tokens:Tokens"

    tokens: Annotated[tuple[str | Annotated[int, Field(ge=0)], ...], Field(min_length=1, examples=[[97, 98]])]
    """Tokens by their text or their id, as the tokenizer beside the model knows them. Ids past its weights make those grow."""

    def uniform(self) -> bool:
        """No layer is touched."""
        return True
