"""The losses against the formulas in float64, and against sentence-transformers where that is installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from related_rows import ROWS, SCORED, recipe

from gym_core import load_recipe
from gym_embedding import Embedding
from gym_embedding.evaluation import correlations
from gym_embedding.losses import LOSSES, Pool, info_nce, ranks, row_losses
from gym_testkit.bench import Bench
from gym_testkit.oracle import compare

CASES: list[dict[str, Any]] = [
    {},
    {"temperature": 0.3, "symmetric": True},
    {"pooling": "mean", "false_negative_margin": 0.0},
    {"symmetric": True, "false_negative_margin": 0.02, "matryoshka_dims": [32, 8]},
    {"loss": "cosent"},
    {"loss": "cosent", "temperature": 0.5, "pooling": "mean", "matryoshka_dims": [16]},
    {"loss": "cosine", "matryoshka_dims": [32, 4]},
]


@pytest.mark.parametrize("options", CASES, ids=str)
def test_value_and_gradient_are_those_of_the_formula(bench: Bench, options: dict[str, Any]) -> None:
    """Rows hold copies: a text that belongs to an anchor is no negative of it, whichever row shows that."""
    rows = SCORED if "loss" in options else ROWS
    value, gradient = compare(load_recipe(recipe(bench, rows, **options)), bench)
    assert value < 1e-5 and gradient < 1e-4


def drawn(counts: list[int], seed: int = 0, dim: int = 8) -> tuple[torch.Tensor, Pool]:
    """Return random states, and a pool of rows of so many different texts."""
    total = sum(counts)
    states = torch.randn(total, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    scores = np.random.default_rng(seed).uniform(size=len(counts)).round(1).tolist()
    return states, Pool.of(counts, range(total), scores)


def test_a_copy_of_what_belongs_to_an_anchor_is_no_negative() -> None:
    states, pool = drawn([2, 2])
    states[3] = states[1]
    copied = Pool.of([2, 2], [0, 1, 2, 1], [1.0, 1.0])
    rows = torch.arange(2)
    assert info_nce(states, pool, Embedding(), rows)[0] > 0.6
    assert info_nce(states, copied, Embedding(), rows).tolist() == [0, 0]
    assert ranks(states, copied, torch.arange(2)).tolist() == [1, 1]


def test_a_text_as_close_as_the_positive_ranks_before_it() -> None:
    """A model that embeds all texts alike finds nothing."""
    _, pool = drawn([3, 2, 2])
    assert ranks(torch.ones(7, 4), pool, torch.arange(3)).tolist() == [4, 4, 4]


def test_equal_documents_take_one_rank() -> None:
    """Two rows have the same hard negative, which is closer to the first anchor than its positive."""
    states = torch.eye(4)[[0, 1, 0, 2, 3, 0]]
    pool = Pool.of([3, 3], [0, 1, 2, 3, 4, 2], [1.0, 1.0])
    assert ranks(states, pool, torch.arange(2)).tolist()[0] == 3  # behind it, and beside a text as far away
    assert ranks(states + torch.eye(4)[1] / 9, pool, torch.arange(2)).tolist()[0] == 2


@pytest.mark.parametrize("symmetric", [False, True])
def test_losses_of_some_rows_are_those_of_all(symmetric: bool) -> None:
    states, pool = drawn([3, 2, 4, 2, 3], seed=3)
    config = Embedding(symmetric=symmetric, false_negative_margin=0.0, matryoshka_dims=(8, 4))
    whole = row_losses(states, pool, config, torch.arange(5))
    parts = torch.cat([row_losses(states, pool, config, rows) for rows in torch.arange(5).split(2)])
    assert torch.allclose(whole, parts, rtol=1e-12)


def test_a_pool_holds_no_table_of_all_texts() -> None:
    """Held-out rows are one pool, and 100,000 of them would have a table of 10 GB."""
    counts, keys = [3, 2, 4, 2] * 50, np.random.default_rng(0).integers(0, 40, 550)
    pool = Pool.of(counts, keys, [1.0] * 200)
    assert sum(tensor.numel() for tensor in vars(pool).values()) < 6 * 550
    texts = np.split(keys, np.cumsum(counts)[:-1])
    belong = {(row[0], row[1]) for row in texts}
    for rows in torch.randperm(200).split(64):
        documents, anchors = keys[pool.documents].tolist(), keys[pool.anchors].tolist()
        related = [[(texts[row][0], told) in belong for told in documents] for row in rows]
        asking = [[(asked, texts[row][1]) in belong for asked in anchors] for row in rows]
        assert pool.related(rows).tolist() == related
        assert pool.asking(rows).tolist() == asking


def test_ranks_are_those_of_a_sorted_list() -> None:
    states, pool = drawn([3, 2, 4, 2, 3], seed=3)
    units = torch.nn.functional.normalize(states, dim=1)
    documents = pool.documents.tolist()
    for row, anchor in enumerate(pool.anchors.tolist()):
        order = sorted(documents, key=lambda each, anchor=anchor: -float(units[anchor] @ units[each]))
        assert ranks(states, pool, torch.tensor([row])).item() == order.index(anchor + 1) + 1


def test_correlations_without_spread_are_0() -> None:
    assert correlations([0.5, 0.5], [0.1, 0.2]) == {"spearman": 0.0, "pearson": 0.0}
    assert correlations([0.1, 0.4, 0.5], [1, 2, 5])["spearman"] == pytest.approx(1)


@pytest.mark.parametrize("name", ["infonce", "symmetric", "cosent", "cosine"])
def test_they_agree_with_sentence_transformers(name: str) -> None:
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    both = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}
    made = {
        "infonce": lambda model: losses.MultipleNegativesRankingLoss(model),
        "symmetric": lambda model: losses.MultipleNegativesRankingLoss(model, **both),
        "cosent": lambda model: losses.CoSENTLoss(model),
        "cosine": lambda model: losses.CosineSimilarityLoss(model),
    }[name](torch.nn.Identity())
    ranked = name in ("infonce", "symmetric")
    states, pool = drawn([3, 3, 3, 3] if ranked else [2] * 6)
    columns = list(states.view(4, 3, -1).unbind(1) if ranked else states.view(6, 2, -1).unbind(1))
    labels = pool.scores.double()
    theirs = made.compute_loss_from_embeddings(columns, labels)
    config = Embedding(loss="infonce" if ranked else name, symmetric=name == "symmetric")
    ours = LOSSES[config.loss](states, pool, config, torch.arange(len(labels))).mean()
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-6)
