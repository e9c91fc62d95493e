"""gym-embedding: embedding models from language models. Configuration alone; nothing heavy is imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt, field_validator

from gym_torch import TorchAlgorithm

__version__ = "0.1.0"
__all__ = ["Embedding"]


class Embedding(TorchAlgorithm):
    """An embedding model: texts that belong together come to lie close to each other, others far apart (InfoNCE).

        loss = -log( exp(cos(q, d) / temperature) / sum over c of exp(cos(q, c) / temperature) )

    q, d: the embeddings of an anchor and of its positive; c: every positive and every negative of the optimizer step.

    Use it for: retrieval, semantic search and clustering, from pairs of texts, with or without hard negatives; with
    `loss: cosent` or `cosine` from pairs that are scored.

    Differs: the negatives are those of the whole step, however it is cut into passes or shared by processes (gradient caching);
    a text that is equal to a positive of the anchor is no negative.
    """

    rows: ClassVar[str] = "gym_embedding.shape:RELATED_TEXTS"
    objective: ClassVar[str] = "gym_embedding.objective:EmbeddingObjective"
    contribution: ClassVar[str] = "gym_embedding.training_setup:embeddings"
    oracle: ClassVar[str] = "gym_embedding.naive_losses:embedding"

    loss: Literal["infonce", "cosent", "cosine"] = "infonce"
    """`infonce` of pairs and hard negatives (`MultipleNegativesRankingLoss` in sentence-transformers); of pairs with a `score`
    `cosent`, which orders them (`CoSENTLoss`), or `cosine`, the squared error of the cosine (`CosineSimilarityLoss`)."""
    pooling: Literal["last_token", "mean"] = "last_token"
    """The state that is the embedding of a text: that of its last token, or the mean of all."""
    temperature: Annotated[float, Field(gt=0)] = 0.05
    """Divides cosines in `infonce` and `cosent` (1 / `scale` in sentence-transformers)."""
    symmetric: bool = False
    """Whether `infonce` has each positive find its anchor too, the mean of both (`MultipleNegativesSymmetricRankingLoss`)."""
    false_negative_margin: float | None = None
    """Leaves out of `infonce` what is closer to the anchor than its positive by more than this: it is likely to belong there.
    0.1 in Qwen3-Embedding."""
    matryoshka_dims: tuple[PositiveInt, ...] = ()
    """Matryoshka dimensions: the loss is the sum of those of the first so many numbers of each embedding, such as
    `[1024, 256, 64]`, so that embeddings can be cut off there (arXiv:2205.13147). By default that of the whole alone."""

    @field_validator("matryoshka_dims")
    @classmethod
    def _different(cls, dims: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(dims)) != len(dims):
            raise ValueError("names a dimension twice")
        return dims

    def evaluation_metrics(self) -> Mapping[str, str]:
        """Return the loss, and how well positives are found among all held-out texts, or scores are followed."""
        own = ("recall@1", "mrr@10", "ndcg@10") if self.loss == "infonce" else ("spearman", "pearson")
        return {**super().evaluation_metrics(), **dict.fromkeys(own, "higher")}

    def shares_prefixes(self) -> bool:
        """Return that samples may where the last token counts alone: an instruction before many texts is computed once."""
        return self.pooling == "last_token"
