"""How well held-out texts find what belongs to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from scipy.stats import pearsonr, spearmanr

from gym_embedding import Embedding
from gym_embedding.losses import pair_cosines, ranks, row_losses
from gym_embedding.whole_step import Embedded, joined
from gym_torch.loop.job import Job

ROWS = 1024  #: that are compared with all others at a time
BEST = 10  #: places that count in `mrr@10` and `ndcg@10`


class RetrievalEvaluation:
    """Measures all held-out rows against each other: their loss, and whether each positive is found or each score is followed."""

    def __init__(self, config: Embedding, embed: Callable[[Job], Sequence[Embedded] | None]) -> None:
        """Take what asks the policy for all embeddings, of all processes; it returns None where a signal came."""
        self.config, self.embed = config, embed

    @torch.no_grad()
    def __call__(self, job: Job) -> Mapping[str, float] | None:
        """Return the loss and the other metrics; None where a signal came."""
        parts = self.embed(job)
        if parts is None:
            return None
        states, pool = joined(parts, job.accelerator.device)
        some = torch.arange(len(pool.anchors), device=states.device).split(ROWS)
        losses = torch.cat([row_losses(states, pool, self.config, rows) for rows in some])
        found = {"loss": float(losses.double().mean())}
        if self.config.loss != "infonce":
            cosines, scores = pair_cosines(states, pool).tolist(), pool.scores.tolist()
            return {**found, **correlations(cosines, scores)}
        places = torch.cat([ranks(states, pool, rows) for rows in some]).double()
        counted = (places <= BEST).double()
        return {
            **found,
            "recall@1": float((places == 1).double().mean()),
            "mrr@10": float((counted / places).mean()),
            "ndcg@10": float((counted / (places + 1).log2()).mean()),
        }


def correlations(cosines: Sequence[float], scores: Sequence[float]) -> dict[str, float]:
    """Return how well cosines follow scores, by rank and by value; 0 where one of them is all the same."""
    if len(set(cosines)) < 2 or len(set(scores)) < 2:
        return {"spearman": 0.0, "pearson": 0.0}
    return {
        "spearman": float(spearmanr(cosines, scores).statistic),
        "pearson": float(pearsonr(cosines, scores).statistic),
    }
