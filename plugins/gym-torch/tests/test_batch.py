"""Rows of tokens: what is predicted from where, and that padding changes no sample."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gym_torch_bench import Sample, samples
from transformers import AutoModelForCausalLM

from gym_torch.batch import padded
from gym_torch.policy import Policy


@pytest.fixture(scope="module")
def policy(model_path: Path) -> Policy:
    return Policy(AutoModelForCausalLM.from_pretrained(model_path).eval())


def test_each_trained_token_is_predicted_by_the_one_before_it() -> None:
    first = Sample("a", np.array([5, 6, 7], np.int32), np.array([True, False, True]))
    second = Sample("b", np.array([8, 9], np.int32), np.array([False, True]))
    batch = padded([first, second])
    assert batch.tokens.tolist() == [[5, 6, 7], [8, 9, 0]]
    assert batch.targets.tolist() == [7, 9]  # nothing predicts token 0, so `a` has one target
    assert batch.target_index.tolist() == [1, 3]
    assert batch.target_segment.tolist() == [0, 1]
    assert (batch.size, batch.ids) == (5, ["a", "b"])


def test_the_policy_agrees_with_the_model(policy: Policy) -> None:
    sample = samples(1)[0]
    logits = policy.model(input_ids=torch.tensor([sample.tokens.tolist()])).logits[0]
    wanted = logits.log_softmax(-1)[:-1].gather(1, torch.tensor(sample.tokens[1:, None], dtype=torch.int64))[:, 0]
    torch.testing.assert_close(policy(padded([sample])), wanted[torch.tensor(sample.trained[1:])], rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_padding_and_neighbours_change_no_sample(model_path: Path, attention: str) -> None:
    policy = Policy(AutoModelForCausalLM.from_pretrained(model_path, attn_implementation=attention).eval())
    group = [samples(12)[index] for index in range(12)]
    assert len({len(sample.tokens) for sample in group}) > 3
    together = policy(padded(group))
    alone = torch.cat([policy(padded([sample])) for sample in group])
    torch.testing.assert_close(together, alone, rtol=0, atol=2e-6)


def test_an_example_without_targets_gives_a_loss_of_zero(policy: Policy) -> None:
    blank = Sample("blank", np.array([1, 2, 3], np.int32), np.zeros(3, bool))
    loss = policy(padded([blank])).sum()
    loss.backward()
    assert loss.item() == 0.0
