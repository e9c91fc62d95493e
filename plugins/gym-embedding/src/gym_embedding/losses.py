"""Losses of embeddings of texts that belong together: a number for each row of a pool, whose sum is the loss.

States are what is pooled, not normalised: `[texts, dim]`, fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import normalize

from gym_embedding import Embedding


@dataclass(frozen=True)
class Pool:
    """Which of some texts belong together: numbers of anchors and documents, which are all other texts."""

    anchors: Tensor  #: [rows] int64, the text that is the anchor of each row; its positive is the next one
    documents: Tensor  #: [documents] int64
    targets: Tensor  #: [rows] int64, the place of the positive of each row among the documents
    asked: Tensor  #: [rows] int64, equal for equal anchors
    told: Tensor  #: [documents] int64, equal for equal documents
    first: Tensor  #: [documents] bool, whether no document before it is equal
    scores: Tensor  #: [rows] fp32; NaN where a row has none

    @classmethod
    def of(cls, counts: npt.ArrayLike, keys: npt.ArrayLike, scores: npt.ArrayLike) -> Pool:
        """Return it for rows of so many texts, each with a key that is equal for equal texts, on the CPU."""
        sizes, names = np.asarray(counts, dtype=np.int64), np.asarray(keys, dtype=np.int64)
        anchors = np.cumsum(sizes) - sizes
        documents = np.delete(np.arange(len(names)), anchors)
        targets = anchors - np.arange(len(anchors))  # before it stand as many anchors as rows
        _, asked = np.unique(names[anchors], return_inverse=True)
        _, firsts, told = np.unique(names[documents], return_index=True, return_inverse=True)
        first = np.zeros(len(documents), dtype=np.bool_)
        first[firsts] = True
        arrays = anchors, documents, targets, asked, told, first, np.asarray(scores, dtype=np.float32)
        return cls(*map(torch.from_numpy, arrays))

    def related(self, rows: Tensor) -> Tensor:
        """Return for some rows which documents are a positive of an equal anchor: their own or a copy, `[k, documents]` bool."""
        return self._belonging(self.asked, self.told[self.targets], rows)[:, self.told]

    def asking(self, rows: Tensor) -> Tensor:
        """Return for some rows which anchors have a positive that is equal to theirs, `[k, rows]` bool."""
        return self._belonging(self.told[self.targets], self.asked, rows)[:, self.asked]

    def _belonging(self, own: Tensor, other: Tensor, rows: Tensor) -> Tensor:
        """Return for some rows which `other` numbers the rows have whose `own` number is theirs, `[k, documents]` bool.

        Of some rows alone, for a table of all would not fit into memory.
        """
        place = own.new_full((len(self.documents),), len(rows))
        place[own[rows]] = torch.arange(len(rows), device=own.device)
        table = torch.zeros(len(rows) + 1, len(self.documents), dtype=torch.bool, device=own.device)
        table[place[own], other] = True
        return table[place[own[rows]]]

    def to(self, device: torch.device) -> Pool:
        """Return it on a device."""
        return Pool(**{name: tensor.to(device) for name, tensor in vars(self).items()})


def info_nce(states: Tensor, pool: Pool, config: Embedding, rows: Tensor) -> Tensor:
    """Return the InfoNCE loss of some rows `[k]` (arXiv:1807.03748), `[k]`; with `symmetric` the mean of both ways."""
    units = normalize(states, dim=-1)
    anchors, documents, targets = units[pool.anchors], units[pool.documents], pool.targets[rows]
    found = one_way(anchors[rows] @ documents.T, targets, pool.related(rows), config)
    if config.symmetric:
        back = one_way(documents[targets] @ anchors.T, rows, pool.asking(rows), config)
        found = (found + back) / 2
    return found


def one_way(cosines: Tensor, targets: Tensor, related: Tensor, config: Embedding) -> Tensor:
    """Return the cross-entropy of the targets `[n]` among those that compete, `[n]`: `cosines` and `related` are `[n, m]`."""
    own = cosines.gather(1, targets[:, None])
    out = related
    if config.false_negative_margin is not None:
        out = out | (cosines.detach() > own.detach() + config.false_negative_margin)
    out = out.scatter(1, targets[:, None], False)
    logits = cosines.masked_fill(out, -torch.inf) / config.temperature
    return logits.logsumexp(1) - own[:, 0] / config.temperature


def cosent(states: Tensor, pool: Pool, config: Embedding, rows: Tensor) -> Tensor:
    """Return for some rows the CoSENT loss of all of them: log(1 + sum of exp((cos_j - cos_i) / temperature) where i has the
    higher score), `[k]`.
    """
    scaled = pair_cosines(states, pool) / config.temperature
    order = pool.scores.argsort()
    scores, scaled = pool.scores[order], scaled[order]
    # The sums over higher scores are those from a place on, so the matrix of all pairs is never made.
    above = torch.cat([torch.logcumsumexp(-scaled.flip(0), 0).flip(0), scaled.new_full((1,), -torch.inf)])
    pairs = scaled + above[torch.searchsorted(scores, scores, right=True)]
    return torch.cat([scaled.new_zeros(1), pairs]).logsumexp(0).expand(len(rows))


def cosine(states: Tensor, pool: Pool, config: Embedding, rows: Tensor) -> Tensor:
    """Return the squared difference of cosine and score of some rows, `[k]`."""
    return (pair_cosines(states, pool) - pool.scores)[rows].square()


def pair_cosines(states: Tensor, pool: Pool) -> Tensor:
    """Return the cosine of the first two texts of each row, `[rows]`."""
    units = normalize(states, dim=-1)
    return (units[pool.anchors] * units[pool.anchors + 1]).sum(-1)


LOSSES: dict[str, Callable[[Tensor, Pool, Embedding, Tensor], Tensor]] = {
    "infonce": info_nce,
    "cosent": cosent,
    "cosine": cosine,
}


def row_losses(states: Tensor, pool: Pool, config: Embedding, rows: Tensor) -> Tensor:
    """Return the loss of some rows of a pool `[k]`, each against all of it, summed over the dimensions that are asked for."""
    loss, dims = LOSSES[config.loss], config.matryoshka_dims or (states.shape[1],)
    return torch.stack([loss(states[:, :dim], pool, config, rows) for dim in dims]).sum(0)


@torch.no_grad()
def ranks(states: Tensor, pool: Pool, rows: Tensor) -> Tensor:
    """Return the rank of the positive of some rows among all documents, from 1, `[k]`.

    Other positives of an equal anchor do not count, and equal documents once. One that is as close is counted as closer.
    """
    units = normalize(states, dim=-1)
    cosines = units[pool.anchors[rows]] @ units[pool.documents].T
    own = cosines.gather(1, pool.targets[rows, None])
    return ((cosines >= own) & ~pool.related(rows) & pool.first).sum(1) + 1
