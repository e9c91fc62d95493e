"""What the engine over batches asks of a model: its words, its tenants, and where its rows are decoded."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Protocol

from gym_data.chat.chat_rendering import ChatTemplateSpec
from gym_data.chat.loss_masks import Rendered
from gym_data.media import MediaReader
from gym_serve.batching.grammar import Grammars
from gym_serve.contract import ModelSource, ScoreInput, ServedModel, Text
from gym_torch.generation.sampling import Scores
from gym_torch.generation.scheduler import Lane


class Words(Protocol):
    """A tokenizer with chat templates, as far as replies need one; `gym_data.tokenizer.Tokenizer` says what each does."""

    @property
    def document_start(self) -> list[int]:
        """Tokens that stand before a text."""
        ...

    @property
    def media(self) -> MediaReader | None:
        """What reads images in messages."""
        ...

    @property
    def templates(self) -> Mapping[str, str]:
        """Text of each chat template."""
        ...

    @property
    def template_spec(self) -> ChatTemplateSpec:
        """What chat templates are told."""
        ...

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text; special tokens in it are text."""
        ...

    def encode_rendered(self, batch: Sequence[Rendered]) -> Sequence[tuple[Any, Any]]:
        """Return arrays of tokens and of what is trained on, for each text that a template made."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens."""
        ...

    def token_id(self, token: str) -> int | None:
        """Return the id of one token, None where the vocabulary does not have it."""
        ...

    def written(self, token: int) -> str | None:
        """Return how the vocabulary writes a token."""
        ...


class Answering(Protocol):
    """What answers for a tenant."""

    @property
    def tokenizer(self) -> Words:
        """Its words."""
        ...

    @property
    def stops(self) -> Collection[int]:
        """The tokens that end a reply."""
        ...

    @property
    def key(self) -> Hashable:
        """What names it, version included, among the rows of the model."""
        ...

    @property
    def context(self) -> int:
        """Tokens of prompt and reply."""
        ...

    @property
    def vocabulary(self) -> int:
        """Number of logits."""
        ...

    @property
    def grammars(self) -> Grammars:
        """What compiles grammars for its vocabulary."""
        ...


class BatchModel(Protocol):
    """A model whose rows are decoded in batches. `open` makes what the methods below it are handed."""

    @property
    def source(self) -> ModelSource:
        """Where it is from."""
        ...

    def listed(self) -> ServedModel:
        """Return it as a front lists it."""
        ...

    def described(self, tenant: str | None, template_options: Mapping[str, Any]) -> ServedModel:
        """Return it with the template of a tenant, and how answers are written with some options. Raises Unknown, GymError."""
        ...

    def tenants(self) -> Sequence[str]:
        """Return the names of its tenants, sorted."""
        ...

    def open(self, tenant: str | None, stack: ExitStack) -> Any:
        """Return an `Answering` until `stack` is closed. Raises Unknown, GymError."""
        ...

    def lane(self, answering: Any, images: bool) -> Lane:
        """Return where its rows are decoded, those with images or those without."""
        ...

    def prompt_scores(self, answering: Any, tokens: Sequence[int], count: int) -> list[Scores]:
        """Return how likely each token of a prompt but the first was. Asked where the engine supports `echo`."""
        ...

    def embeddings(self, answering: Any, texts: Sequence[Text], dimensions: int | None) -> list[list[float]]:
        """Return a vector for each text. Asked where `embed` is among its tasks."""
        ...

    def scores(self, inputs: Sequence[ScoreInput]) -> list[float]:
        """Return the score of each input. Asked where `score` is among its tasks."""
        ...

    def close(self) -> None:
        """Let go of everything; nothing is decoded any more."""
        ...
