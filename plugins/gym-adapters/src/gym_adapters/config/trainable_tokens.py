"""Single tokens: those of a new vocabulary, or some that a model has not learnt well."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from gym_torch.kinds import Adapter


class TrainableTokens(Adapter):
    """Trains the rows of some tokens in the embeddings, and in the head, and nothing else.

        embedding of token i = E_i                R_i in its place for the tokens named
        logit of token i = H_i h + bias_i         R_i, or a row of its own where the head is not tied

    The rows R `[tokens, hidden]` stand in place of those of the base, and begin as they are; embeddings and head stay. Ids past
    the weights make both grow at first, by the mean of the other rows, so a tokenizer that was extended is all there need be.
    Embeddings that a model scales inside are scaled too.

    Trains: `tokens hidden` numbers, twice as many where the head is not tied.

    Code: ours: peft lets an untied head alone, so that new tokens are read and never written, and copies the whole embedding
    matrix for each pass through a layer, so once for each chunk of the head.

    On the disk: whole rows, not differences, by peft's names: they mean the same whatever stood there before. peft loads them,
    new ones only over a base that was made as large. Merges into the rows; what was tied stays tied. Left out, it leaves the
    base, grown where it grew.

    Not with: a text that is no token of the tokenizer beside the model, or an id past both its tokens and the weights (`gym
    tokens` makes it one).
    """

    target: ClassVar[str] = "gym_adapters.tuners.trainable_tokens:TrainableTokensAdapter"
    adds_embeddings: ClassVar[bool] = True

    tokens: Annotated[tuple[str | Annotated[int, Field(ge=0)], ...], Field(min_length=1, examples=[[97, 98]])]
    """Tokens by their text or their id, as the tokenizer beside the model knows them. Ids past its weights make those grow."""

    def uniform_layers(self) -> bool:
        """No layer is touched."""
        return True
