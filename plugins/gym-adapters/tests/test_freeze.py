"""Training whole weights: exactly the named ones change, and the result is a plain model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from gym_adapters import Freeze, Full
from gym_core import GymError
from gym_torch.kinds import Adapter


def changed(bench: Any, adapter: Adapter) -> set[str]:
    """Train and return the names of the weights that moved."""
    adapted = adapter.build(model=bench.base(), seed=0)
    assert torch.equal(bench.logits(adapted.model), bench.logits(bench.base()))
    bench.train(adapted.model)
    before = bench.base().state_dict()
    moved = {name for name, weight in adapted.model.named_parameters() if not torch.equal(weight, before[name])}
    assert moved == set(adapted.state())
    return moved


@pytest.mark.proves("full")
def test_full_trains_everything(bench: Any) -> None:
    assert changed(bench, Full()) == {name for name, _ in bench.base().named_parameters()}


@pytest.mark.proves("freeze")
@pytest.mark.parametrize(("layers", "numbers"), [(2, {1, 2}), (1, {2}), (-2, {0, 1}), (3, {0, 1, 2})])
def test_last_or_first_layers(bench: Any, layers: int, numbers: set[int]) -> None:
    moved = changed(bench, Freeze(trainable_layers=layers))
    assert {int(name.split(".")[2]) for name in moved} == numbers
    assert any("self_attn" in name for name in moved) and any("layernorm" in name for name in moved)


@pytest.mark.proves("freeze")
def test_some_modules_and_some_outside(bench: Any) -> None:
    moved = changed(bench, Freeze(trainable_layers=1, trainable_modules="mlp, q_proj", extra_modules=("embed_tokens",)))
    assert {name.split(".")[-2] for name in moved} == {
        "gate_proj",
        "up_proj",
        "down_proj",
        "q_proj",
        "embed_tokens",
    }


def test_the_head_of_a_tied_model_can_be_named(bench: Any) -> None:
    tied = bench.base().config.tie_word_embeddings
    moved = changed(bench, Freeze(trainable_layers=1, trainable_modules="mlp", extra_modules="lm_head"))
    assert ("model.embed_tokens.weight" if tied else "lm_head.weight") in moved


@pytest.mark.proves("freeze")
def test_saved_restored_and_merged(bench: Any, tmp_path: Path) -> None:
    one, other = Freeze().build(model=bench.base(), seed=0), Freeze().build(model=bench.base(), seed=0)
    bench.train(one.model)
    artifact = one.save(tmp_path / "saved", "base", exact=True)
    other.load(other.read(tmp_path / "saved"))
    expected = bench.logits(one.model)
    assert artifact.kind == "model"
    assert torch.equal(bench.logits(other.model), expected)
    assert torch.equal(bench.logits(one.merged()), expected)
    assert torch.equal(bench.logits(AutoModelForCausalLM.from_pretrained(tmp_path / "saved")), expected)


@pytest.mark.proves("freeze")
def test_bf16_is_kept_where_frozen_and_trains_under_autocast(bench: Any, tmp_path: Path) -> None:
    adapted = Freeze(trainable_layers=1).build(model=bench.base(dtype=torch.bfloat16), seed=0)
    assert {weight.dtype for weight in adapted.state().values()} == {torch.float32}
    assert adapted.model.base_model.layers[0].mlp.up_proj.weight.dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        bench.train(adapted.model)
        assert torch.isfinite(bench.logits(adapted.model)).all()


@pytest.mark.proves("freeze")
@pytest.mark.parametrize(
    ("config", "error"),
    [
        (Freeze(trainable_modules="mlp,attn"), r"no module `attn`[^\n]*\n.*self_attn"),
        (Freeze(extra_modules="mlp"), r"no module `mlp`[^\n]*\n.*embed_tokens"),
        (Freeze(trainable_layers=-9), "the model has 3 layers, not 9"),
    ],
)
def test_what_is_not_there_is_named(bench: Any, config: Freeze, error: str) -> None:
    with pytest.raises(GymError, match=error):
        config.build(model=bench.base(), seed=0)


@pytest.mark.proves("full")
@pytest.mark.parametrize("config", [Full(), Freeze(trainable_layers=1)])
def test_quantized_weights_cannot_be_trained(bench: Any, config: Adapter) -> None:
    model = bench.base()
    layer = model.get_submodule("model.layers.2.mlp.up_proj")
    layer.weight = torch.nn.Parameter(layer.weight.to(torch.int8), requires_grad=False)
    with pytest.raises(GymError, match=r"layers\.2\.mlp\.up_proj\.weight is quantized and cannot be trained"):
        config.build(model=model, seed=0)
