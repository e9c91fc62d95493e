"""The objective of pairs: one prompt for both answers, sums over pairs, and what is measured of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from preference_cases import SIZES, pairs
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from gym_core import Train
from gym_data.examples import Pair
from gym_plan.synthetic_examples import SyntheticExamples
from gym_preference import CPO, DPO, IPO, LDDPO, ORPO, DPONorm, PairwisePreference, SimPO
from gym_preference.pairwise.objective import LengthDesensitized, PairObjective
from gym_torch.batch import Batch
from gym_torch.metrics import Metric
from gym_torch.model.layout_support import layout_for
from gym_torch.packing import PACKED, PADDED, Layout
from gym_torch.policy import Policy
from gym_torch.prompt_responses import ResponseBatch
from gym_torch.shared_prefixes import SHARED
from gym_torch.source import Dataset


def load(path: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    return model


def alone(model: PreTrainedModel, pair: Pair) -> list[Tensor]:
    """Return the log-probabilities of the tokens of each answer, from a forward pass of its own."""
    middle, found = pair.shared + pair.chosen, []
    for part in (slice(pair.shared, middle), slice(middle, None)):
        tokens = np.concatenate([pair.tokens[: pair.shared], pair.tokens[part]]).tolist()
        trained = np.concatenate([np.zeros(pair.shared, bool), pair.trained[part]])
        scores = model(input_ids=torch.tensor([tokens])).logits[0].log_softmax(-1)
        found.append(torch.stack([scores[at - 1, tokens[at]] for at in np.flatnonzero(trained)]))
    return found


def begun_alike() -> list[Pair]:
    """Return two pairs whose prompts begin with the same tokens, as after one system prompt."""
    first, second = pairs([(30, 3, 5), (28, 6, 2)], seed=1)
    second.tokens[:20] = first.tokens[:20]
    return [first, second]


def fixed(batch: Batch) -> Tensor:
    """A reference that does not look at anything but the tokens."""
    return -1.0 - (batch.targets % 7) / 7


@pytest.mark.parametrize("layout", [PACKED, PADDED, SHARED], ids=lambda layout: layout.name)
@pytest.mark.parametrize("ftx", [0.0, 0.3])
def test_one_prompt_for_both_answers_gives_what_each_gives_alone(model_path: Path, layout: Layout, ftx: float) -> None:
    model, examples = load(model_path), pairs() + begun_alike()
    if layout is not PADDED:
        assert layout_for(model) is PACKED
    objective = PairObjective(DPO(beta=0.3, ftx=ftx), layout)
    objective.reference = fixed
    batch = objective.collate(examples)
    assert bool(batch.shared) == (layout is SHARED)
    found, _ = objective.loss(Policy(model), batch)
    plain, wanted = load(model_path), torch.zeros(())
    for pair in examples:
        sides, at = alone(plain, pair), pair.shared + pair.chosen
        tokens = [pair.tokens[pair.shared : at], pair.tokens[at:]]
        ratios = [
            (side - (-1.0 - torch.tensor(own[-len(side) :] % 7) / 7)).sum()
            for side, own in zip(sides, tokens, strict=True)
        ]
        margin = 0.3 * (ratios[0] - ratios[1])
        wanted = wanted - torch.log(torch.sigmoid(margin)) - ftx * sides[0].mean()
    assert objective.weight(batch) == len(examples)
    assert found.item() == pytest.approx(wanted.item(), rel=1e-5)


def test_a_prompt_is_computed_once() -> None:
    batch = PairObjective(DPO(), PACKED).collate(pairs())
    assert batch.size == sum(map(sum, SIZES)) and batch.responses == 2 * len(SIZES)
    assert [segment.prefix for segment in batch.segments[:3]] == [None, 0, 0]
    assert batch.lengths.tolist() == [4, 7, 6, 6, 2, 1, 4, 7, 11, 3]


@pytest.mark.parametrize(
    "config", [DPO(), IPO(), DPONorm(), SimPO(), ORPO(), CPO(), LDDPO()], ids=lambda c: type(c).__name__
)
def test_a_step_does_not_depend_on_how_it_is_cut(model_path: Path, config: PairwisePreference) -> None:
    make: Callable[[PairwisePreference], PairObjective] = (
        LengthDesensitized if isinstance(config, LDDPO) else PairObjective
    )
    objective, policy = make(config), Policy(load(model_path))

    def total(parts: list[list[Pair]]) -> tuple[float, dict[str, Metric]]:
        loss, weight, sums = 0.0, 0.0, dict[str, Metric]()
        for part in parts:
            batch = objective.collate(part)
            value, metrics = objective.loss(policy, batch)
            loss, weight = loss + value.item(), weight + objective.weight(batch)
            sums = {name: sums[name].plus(each) if name in sums else each for name, each in metrics.items()}
        return loss / weight, sums

    whole, apart = total([pairs()]), total([[pair] for pair in pairs()])
    assert whole[0] == pytest.approx(apart[0], rel=1e-5)
    for name, value in whole[1].items():
        torch.testing.assert_close(value.numbers(), apart[1][name].numbers(), rtol=1e-4, atol=1e-4)


def measured(
    log_ratios: Tensor, sizes: list[tuple[int, int, int]], config: PairwisePreference | None = None
) -> dict[str, float]:
    """Return the metrics of a batch whose targets have these log-ratios to a reference of 0."""
    objective = PairObjective(config or DPO(beta=0.5), PADDED)
    _, metrics = objective.loss(lambda batch: log_ratios, objective.collate(pairs(sizes)))
    weight = len(sizes)
    found = {name: each.value(list(map(float, each.numbers())), weight) for name, each in metrics.items()}
    return {name: math.nan if value is None else value for name, value in found.items()}


def test_what_is_measured() -> None:
    """Two pairs: the first is right by 3 nats and its chosen answer is longer, the second wrong by 1 and shorter."""
    found = measured(torch.tensor([-1.0, -1.0, -5.0, -3.0, -1.0, -1.0]), [(2, 2, 1), (2, 1, 2)])
    assert found == pytest.approx(
        {
            "rewards/accuracies": 0.5,
            "rewards/margins": 0.5 * (3 - 1) / 2,
            "rewards/chosen": 0.5 * (-2 - 3) / 2,
            "rewards/rejected": 0.5 * (-5 - 2) / 2,
            "logps/chosen": -5 / 3,
            "logps/rejected": -7 / 3,
            "ref_logps/chosen": 0,
            "ref_logps/rejected": 0,
            "length_bias": (0 + 1) / 2,  # both times the longer one is preferred, once it was chosen
            "kl": (1 + 1 + 25 + 9 + 1 + 1) / 12,
        }
    )
    assert "kl" not in measured(torch.zeros(3), [(2, 2, 1)], SimPO())


def test_equal_answers_are_right_by_half() -> None:
    assert measured(torch.tensor([-1.0, -1.0]), [(2, 1, 1)])["rewards/accuracies"] == 0.5


def test_tokens_beyond_the_shorter_answer_count_as_much_as_is_said(model_path: Path) -> None:
    objective = LengthDesensitized(LDDPO(ld_alpha=0.25), PADDED)
    batch = objective.collate(pairs([(2, 3, 1), (2, 1, 2)]))
    ratios = torch.tensor([1.0, 10.0, 100.0, 7.0, 5.0, 1.0, 8.0])
    chosen, rejected = objective.sides(ratios, batch)
    assert chosen.tolist() == [1 + 110 / 4, 5] and rejected.tolist() == [7, 1 + 8 / 4]
    policy = Policy(load(model_path))
    full, plain = (
        kind(config, PADDED) for kind, config in ((LengthDesensitized, LDDPO(ld_alpha=1)), (PairObjective, DPO()))
    )
    assert full.loss(policy, full.collate(pairs()))[0] == plain.loss(policy, plain.collate(pairs()))[0]


def test_what_the_reference_said_before_takes_the_place_of_asking_it() -> None:
    objective = PairObjective(DPO(), PADDED)
    batch = objective.collate(pairs())
    known = ResponseBatch(**{**vars(batch), "columns": {"reference": fixed(batch)}})
    objective.reference = fixed
    scores = torch.linspace(-3, -1, len(batch.targets))
    assert objective.loss(lambda _: scores, batch)[0] == PairObjective(DPO(), PADDED).loss(lambda _: scores, known)[0]


def test_a_plan_counts_both_sides() -> None:
    """Where no data tell, a pair is at most twice as long as a sample may be, and shares nothing."""
    train = Train(batch_size=2, max_steps=3)
    source = Dataset(SyntheticExamples(DPO.rows, 32, 8), train, layout=PADDED)
    batch = PairObjective(DPO(), PADDED).collate(next(source.steps(0)).batches[0])
    assert source.tokens == 3 * 2 * 64 and batch.tokens.shape == (4, 32)
