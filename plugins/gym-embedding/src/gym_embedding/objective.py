"""From texts that belong together to a loss."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from gym_core import DataError
from gym_embedding import Embedding
from gym_embedding.losses import Pool, ranks, row_losses
from gym_embedding.pooling import Pooling
from gym_embedding.samples import JudgedTexts, TextsSample
from gym_torch.auxiliary_module import AuxiliaryModule
from gym_torch.batch import Batch, apart
from gym_torch.metrics import Mean, Metric, Metrics
from gym_torch.model.scalar_head import freeze_lm_head
from gym_torch.objective import Objective, Scores
from gym_torch.policy import Policy
from gym_torch.rounding import rounding


@dataclass(frozen=True, kw_only=True)
class TextsBatch(Batch):
    """A batch of texts, and which of them belong together."""

    pooled: Tensor  #: [n] int64, flat positions (of rows * length) of the states that are pooled, text after text
    text: Tensor  #: [n] int64, the text that each of them is of
    sizes: Tensor  #: [texts] fp32, how many each text has
    keys: Tensor  #: [texts] int64, equal for equal texts
    columns: Mapping[str, Tensor]  #: of `Pool`: this batch alone as what competes
    judged: Mapping[str, Tensor] = field(default_factory=dict)
    """Where all embeddings of the step are known: `gradients` [texts, dim], `losses` [samples], `found` [samples], all fp32."""

    @property
    def pool(self) -> Pool:
        """The texts of this batch, and which belong together."""
        return Pool(**self.columns)


class EmbeddingPolicy(Policy[TextsBatch]):
    """A language model whose states are pooled; its own head is left out."""

    def forward(self, batch: TextsBatch) -> Tensor:
        """Return a state for each text `[texts, dim]`, in fp32, not normalised."""
        with rounding(batch.tokens.device, self.precision):
            states = self.hidden(batch, batch.pooled)
        states = states.to(torch.promote_types(states.dtype, torch.float32))
        if len(states) == len(batch.sizes):  # one for each text
            return states
        sums = states.new_zeros(len(batch.sizes), states.shape[1]).index_add(0, batch.text, states)
        return sums / batch.sizes[:, None]


class EmbeddingObjective(Objective[TextsBatch, TextsSample]):
    """A loss for each row, and each row alike. Where nobody has judged a whole step before, a batch is all that competes."""

    config: Embedding
    policy: type[Policy[Any]] = EmbeddingPolicy

    def auxiliary_modules(self, model: PreTrainedModel) -> Mapping[str, AuxiliaryModule]:
        """Return what writes down how states become embeddings. Raises DataError for dimensions that these do not have."""
        width: int = model.config.get_text_config().hidden_size
        if max(self.config.matryoshka_dims, default=0) > width:
            why = f"names {max(self.config.matryoshka_dims)} dimensions, and embeddings of this model have {width}"
            raise DataError(why, key="algorithm.matryoshka_dims", fix=f"name dimensions up to {width}")
        freeze_lm_head(model)
        return {"pooling": Pooling(width, self.config.pooling)}

    def collate(self, examples: Sequence[TextsSample]) -> TextsBatch:
        """Lay the texts out, each as a segment of its own. Raises DataError for a row without what the loss is of."""
        for each in examples:
            self._check(each)
        pieces, prefixes = apart(examples)
        batch = self.layout.lay_out(pieces, prefixes)
        last = self.config.pooling == "last_token"
        offsets = [[-1] if last else list(range(-len(piece.tokens), 0)) for piece in pieces]
        keys = [_key(piece.tokens) for piece in pieces]
        scores = [float("nan") if each.score is None else each.score for each in examples]
        sizes = torch.tensor([len(each) for each in offsets])
        return TextsBatch(
            **vars(batch),
            pooled=batch.places(offsets),
            text=torch.repeat_interleave(sizes),
            sizes=sizes.float(),
            keys=torch.tensor(keys),
            columns=vars(Pool.of([len(each.lengths) for each in examples], keys, scores)),
            judged=_judged([each for each in examples if isinstance(each, JudgedTexts)]),
        )

    def _check(self, sample: TextsSample) -> None:
        loss = self.config.loss
        if (sample.score is None) != (loss == "infonce"):
            has = "no score" if sample.score is None else "a score"
            fix = (
                "`loss: infonce`, or name the column of scores"
                if sample.score is None
                else "`loss: cosent` or `cosine`, or `score: null` in the format `related-texts` to leave it out"
            )
            why = f"row {sample.id} has {has}, and `loss: {loss}` is not of such rows"
            raise DataError(why, key="algorithm.loss", fix=f"set {fix}")
        if loss == "cosine" and not -1 <= (sample.score or 0.0) <= 1:
            why = f"row {sample.id} has the score {sample.score:g}, and `loss: cosine` compares it with a cosine"
            raise DataError(
                why, key="algorithm.loss", fix="divide scores so that they are from -1 to 1, or set `loss: cosent`"
            )

    def weight(self, batch: TextsBatch) -> float:
        """Return the number of rows."""
        return float(len(batch.columns["anchors"]))

    def loss(self, policy: Scores[TextsBatch], batch: TextsBatch) -> tuple[Tensor, Metrics]:
        """Return the summed losses of the rows, and for `infonce` how many find their positive first.

        Of a step that was judged as a whole, value and gradient are those of the step's loss.
        """
        states = policy(batch)
        if not batch.judged:
            losses, found = judge(states, batch.pool, self.config)
            return losses.sum(), self._metrics(found)
        pulled = (states * batch.judged["gradients"]).sum()
        return batch.judged["losses"].sum() + pulled - pulled.detach(), self._metrics(batch.judged["found"])

    def _metrics(self, found: Tensor) -> dict[str, Metric]:
        return {"recall@1": Mean(found.sum())} if self.config.loss == "infonce" else {}


def _judged(samples: Sequence[JudgedTexts]) -> dict[str, Tensor]:
    """Return what is known of samples from their whole step; nothing where they are none."""
    if not samples:
        return {}
    return {
        "gradients": torch.from_numpy(np.concatenate([each.gradient for each in samples])),
        "losses": torch.tensor([each.loss for each in samples], dtype=torch.float32),
        "found": torch.tensor([each.found for each in samples], dtype=torch.float32),
    }


def judge(states: Tensor, pool: Pool, config: Embedding) -> tuple[Tensor, Tensor]:
    """Return the loss of each row `[rows]`, and whether its positive is the closest, as 0 or 1; 0 where rows have scores."""
    rows = torch.arange(len(pool.anchors), device=states.device)
    losses = row_losses(states, pool, config, rows)
    if config.loss != "infonce":
        return losses, torch.zeros_like(losses, requires_grad=False)
    return losses, (ranks(states.detach(), pool, rows) == 1).to(losses.dtype)


def _key(tokens: np.ndarray) -> int:
    """Return a number that is equal for equal tokens."""
    return int.from_bytes(hashlib.blake2b(tokens.tobytes(), digest_size=8).digest(), "big", signed=True)
