"""The losses against their formulas in float64, in value and gradient, and the limits that the papers state."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from gym_core import load_recipe
from gym_testkit.bench import Bench
from gym_testkit.oracle import compare
from gym_unlearn.losses import gradient_ascent, npo, simnpo
from gym_unlearn.naive_losses import forgetting
from gym_unlearn.steering import direction


@pytest.mark.parametrize(
    "options",
    [
        {"name": "grad_diff", "gamma": 0.3, "alpha": 0.7},
        {"name": "grad_diff", "retain_loss_type": "KL", "alpha": 2.0},
        {"name": "npo", "beta": 0.7, "gamma": 0.5, "alpha": 0.0},
        {"name": "npo", "beta": 0.02, "retain_loss_type": "KL"},
        {"name": "simnpo", "delta": -0.4, "gamma": 1.0},
        {"name": "rmu", "layer": 0, "steering_coeff": 6.5, "alpha": 1200.0},
    ],
    ids=str,
)
def test_options_change_value_and_gradient_as_their_formulas_say(bench: Bench, options: dict[str, Any]) -> None:
    value, gradient = compare(load_recipe(bench.recipe(options, "feedback")), bench)
    assert value <= 1e-5 and gradient <= 1e-4


@pytest.mark.parametrize("log_prob", [-1e-6, -3.0, -40.0])
def test_losses_of_one_answer_are_those_of_their_definition(log_prob: float) -> None:
    found = torch.tensor([log_prob], dtype=torch.float64)
    zero, length = torch.zeros(1, dtype=torch.float64), torch.tensor([4.0], dtype=torch.float64)
    options = {"beta": 0.5, "delta": 0.2}
    assert npo(found, zero, length, 0.5).item() == pytest.approx(forgetting("NPO", options, found[0], 4).item())
    assert simnpo(found, zero, length, 0.5, 0.2).item() == pytest.approx(
        forgetting("SimNPO", options, found[0], 4).item()
    )


def test_npo_becomes_gradient_ascent_as_beta_goes_to_0_and_leaves_unlikely_answers_alone() -> None:
    before = torch.tensor([-5.0, -7.0, -2.0], dtype=torch.float64)
    lengths = torch.full((3,), 4.0, dtype=torch.float64)

    def gradient(loss: Any, apart: Any, **options: Any) -> torch.Tensor:
        now = (before + apart).requires_grad_()
        (found,) = torch.autograd.grad(loss(now, before, lengths, **options).sum(), now)
        return found

    apart = torch.tensor([-0.5, 1.0, -3.0], dtype=torch.float64)
    near, ascent = gradient(npo, apart, beta=1e-3), gradient(gradient_ascent, apart)
    assert torch.cosine_similarity(near, ascent, dim=0) > 0.999
    assert near.tolist() == pytest.approx([1.0, 1.0, 1.0], rel=2e-3), (
        "of the sum of log-probabilities, not of their mean"
    )
    assert gradient(npo, -200.0, beta=0.1).abs().max() < 1e-8
    assert gradient(simnpo, -400.0, beta=1.0, delta=0.0).abs().max() < 1e-8
    assert torch.isfinite(npo(torch.tensor([-1e5, 0.0]), torch.tensor([0.0, -1e5]), torch.ones(2), 0.1)).all()


def test_the_direction_is_a_unit_vector_and_the_same_each_time() -> None:
    assert direction(64).norm().item() == pytest.approx(1, abs=1e-6) and bool((direction(64) >= 0).all())
    assert torch.equal(direction(64), direction(64)) and len(direction(7)) == 7


@pytest.mark.parametrize("checkpointing", [False, True])
def test_layers_above_the_steered_one_compute_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, checkpointing: bool
) -> None:
    called, forward = list[int](), Qwen3DecoderLayer.forward

    def noted(self: Qwen3DecoderLayer, *args: Any, **more: Any) -> Any:
        called.extend([self.self_attn.layer_idx] * torch.is_grad_enabled())  # not what is tried before
        return forward(self, *args, **more)

    monkeypatch.setattr(Qwen3DecoderLayer, "forward", noted)
    options = {"gradient_checkpointing": checkpointing, "max_steps": 2}
    recipe = bench.recipe({"name": "rmu", "layer": 0}, "feedback", **options)
    model = {"path": recipe["model"], "compile": False}
    run = bench.run(recipe | {"model": model}, f"steered-{checkpointing}")
    assert {*called} == {0} and len(run.series("loss")) == 2
