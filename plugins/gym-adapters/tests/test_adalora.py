"""AdaLoRA: the ranks that are left are as many as asked for, and the penalty and every score go on exactly."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from pydantic import ValidationError

from gym_adapters import AdaLoRA
from gym_adapters.tuners.adalora import AdaLoraAdapter
from gym_core import GymError


def steps(bench: Any, adapted: AdaLoraAdapter, optimizer: torch.optim.Optimizer, numbers: range, total: int) -> None:
    """Take steps as the loop does: penalty, update, and the adapter is told while the gradients are there."""
    adapted.model.train()
    for number in numbers:
        (adapted.model(bench.tokens, labels=bench.tokens).loss + adapted.penalty()).backward()
        optimizer.step()
        adapted.after_step(number + 1, total)
        optimizer.zero_grad()


def optimizer_of(adapted: AdaLoraAdapter) -> torch.optim.Optimizer:
    return torch.optim.AdamW([weight for weight in adapted.model.parameters() if weight.requires_grad], lr=0.02)


def ranks(adapted: AdaLoraAdapter) -> list[int]:
    return [int((weight != 0).sum()) for name, weight in adapted.trained().items() if "lora_E" in name]


@pytest.mark.proves("adalora")
@pytest.mark.parametrize(("warmup", "final"), [(0.1, 0.3), (3, 4), (0, 0)])
def test_the_ranks_left_are_those_asked_for(bench: Any, warmup: float, final: float) -> None:
    adapted = AdaLoRA(rank=4, target_rank=2, tinit=warmup, tfinal=final).build(model=bench.base(), seed=0)
    optimizer = optimizer_of(adapted)
    steps(bench, adapted, optimizer, range(3), 12)
    early = ranks(adapted)
    steps(bench, adapted, optimizer, range(3, 12), 12)
    assert sum(ranks(adapted)) == 2 * len(early) < sum(early)
    assert len(set(ranks(adapted))) > 1  # not the same everywhere


@pytest.mark.proves("adalora")
@pytest.mark.parametrize("interval", [1, 5, 100])
def test_they_are_where_the_step_in_which_the_last_ones_go_updates_nothing(bench: Any, interval: int) -> None:
    config = AdaLoRA(rank=4, target_rank=2, tinit=3, tfinal=4, delta_t=interval)
    adapted = config.build(model=bench.base(), seed=0)
    optimizer = optimizer_of(adapted)
    for numbers in (range(6), range(8, 12)):  # steps 7 and 8 are left out
        steps(bench, adapted, optimizer, numbers, 12)
    assert sum(ranks(adapted)) == 2 * len(ranks(adapted))


@pytest.mark.proves("adalora")
def test_the_penalty_is_the_mean_distance_from_orthogonal(bench: Any) -> None:
    adapted = AdaLoRA(rank=4, target_rank=2, orth_reg_weight=0.3).build(model=bench.base(), seed=0)
    distances = []
    for name, tensor in adapted.trained().items():
        matrix = tensor.double().numpy()
        if "lora_A" in name:
            distances.append(np.linalg.norm(matrix @ matrix.T - np.eye(4)))
        if "lora_B" in name:
            distances.append(np.linalg.norm(matrix.T @ matrix - np.eye(4)))
    assert float(adapted.penalty().detach()) == pytest.approx(0.3 * np.mean(distances), rel=1e-6)


@pytest.mark.proves("adalora")
@pytest.mark.parametrize("stop", [2, 6, 11])
def test_it_goes_on_to_the_bit_from_any_step(bench: Any, tmp_path: Path, stop: int) -> None:
    """Before, while and after ranks go."""
    config = AdaLoRA(rank=4, target_rank=2, tinit=3, tfinal=4)
    whole = config.build(model=bench.base(), seed=0)
    optimizer = optimizer_of(whole)
    steps(bench, whole, optimizer, range(stop), 14)
    whole.save(tmp_path / "saved", "base", exact=True)
    again = config.build(model=bench.base(), seed=5)
    again.load(again.read(tmp_path / "saved"))
    successor = optimizer_of(again)
    successor.load_state_dict(deepcopy(optimizer.state_dict()))
    steps(bench, whole, optimizer, range(stop, 14), 14)
    steps(bench, again, successor, range(stop, 14), 14)
    ours, theirs = whole.state(), again.state()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert ranks(again) == ranks(whole)


@pytest.mark.proves("adalora")
def test_peft_loads_what_is_left(bench: Any, tmp_path: Path) -> None:
    adapted = AdaLoRA(rank=4, target_rank=2).build(model=bench.base(), seed=0)
    steps(bench, adapted, optimizer_of(adapted), range(10), 10)
    adapted.save(tmp_path / "adapter", "base")
    plain = PeftModel.from_pretrained(bench.base(), str(tmp_path / "adapter"))
    expected = bench.logits(adapted.model)
    assert (bench.logits(plain.get_base_model()) - expected).abs().max() < 1e-5 * expected.abs().max()
    sizes = [weight.shape[0] for name, weight in plain.named_parameters() if "lora_E" in name]
    assert sizes == ranks(adapted)
    steps(bench, adapted, optimizer_of(adapted), range(10), 10)  # saving left it trainable


def test_a_run_too_short_to_let_ranks_go_is_an_error(bench: Any) -> None:
    adapted = AdaLoRA(rank=4, target_rank=2, tinit=5, tfinal=5).build(model=bench.base(), seed=0)
    with pytest.raises(GymError, match="of 10 steps none is left"):
        steps(bench, adapted, optimizer_of(adapted), range(1), 10)


def test_the_target_is_below_the_rank() -> None:
    with pytest.raises(ValidationError, match="target_rank must be below"):
        AdaLoRA(rank=8, target_rank=8)
