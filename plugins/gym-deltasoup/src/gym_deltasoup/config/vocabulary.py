"""Which tokenizer the result of a merge has, where the inputs have different ones. No torch is imported here."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from gym_core.component import Config


class RowOptions(Config):
    """Where the numbers of a token come from."""

    kind: Literal["zero", "model_token"]
    """Zeros, or those of another token."""
    model: str = ""
    """Path or name of the input that has that token, or the base."""
    token: str | None = None
    """Its text."""
    token_id: NonNegativeInt | None = None
    """Or its number."""

    @model_validator(mode="after")
    def _one(self) -> RowOptions:
        said = (bool(self.model), self.token is not None, self.token_id is not None)
        if said not in {(True, True, False), (True, False, True)} and (self.kind != "zero" or any(said)):
            raise ValueError(
                "has, of `model_token`, a `model` and either `token` or `token_id`; of `zero` none of them"
            )
        return self


class TokenOptions(Config):
    """A token whose numbers are said."""

    source: str | RowOptions
    """Path or name of the input whose numbers it gets, or the base; or a mapping with `kind`."""
    force: bool = False
    """Whether models that have the token get these numbers too; by default those alone that have it not."""


class TokenizerOptions(Config):
    """The tokenizer of the result, and where numbers come from of tokens that a model has not."""

    source: Annotated[str, Field(min_length=1)] = "union"
    """`base`, the path of a model, or `union`: that of the base, and the added tokens of all others behind it."""
    base: str | None = None
    """The model that `base` and `union` mean, a path as `inputs` have it; by default the base of the merge, else the first input.
    Where a model lacks a token, the base's numbers stand for it, if it has the token; else the mean of the models that have."""
    tokens: dict[str, TokenOptions] = {}
    """Tokens by their text, with where their numbers come from; they are added where the tokenizer has them not."""
    pad_to_multiple_of: PositiveInt | None = None
    """Embeddings get rows up to a multiple of this; the further ones are the mean of the others."""


def as_mapping(said: Any) -> Any:
    """Return options of which only the source is said."""
    return {"source": said} if isinstance(said, str) else said
