"""LoHa, LoKr, VeRA, (IA)3 and LN-tuning compute what their papers say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from gym_adapters import IA3, LNTuning, LoHa, LoKr, VeRA
from gym_core import GymError
from gym_torch.kinds import Adapter

PLACE = "base_model.model.model.layers.1.self_attn.q_proj."


def update(bench: Any, config: Adapter) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Train, and return the adapter of a layer and what merging adds to its weight."""
    adapted = config.build(model=bench.base(), seed=0)
    bench.train(adapted.model)
    parts = {name.removeprefix(PLACE): weight for name, weight in adapted.state().items() if name.startswith(PLACE)}
    merged = adapted.merged().get_submodule("model.layers.1.self_attn.q_proj").weight
    return parts, merged - bench.base().get_submodule("model.layers.1.self_attn.q_proj").weight


@pytest.mark.proves("loha")
def test_loha_is_a_product_by_element(bench: Any) -> None:
    parts, found = update(bench, LoHa(rank=2, alpha=6, target_modules="q_proj"))
    wanted = 3 * (parts["hada_w1_a"] @ parts["hada_w1_b"]) * (parts["hada_w2_a"] @ parts["hada_w2_b"])
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-4)
    first, second, third, fourth = (parts[f"hada_{name}"].double() for name in ("w1_a", "w1_b", "w2_a", "w2_b"))
    assert torch.linalg.matrix_rank((first @ second) * (third @ fourth)) == 4


@pytest.mark.proves("lokr")
def test_lokr_is_a_kronecker_product(bench: Any) -> None:
    parts, found = update(bench, LoKr(rank=1, alpha=2, target_modules="q_proj"))
    second = parts["lokr_w2"] if "lokr_w2" in parts else parts["lokr_w2_a"] @ parts["lokr_w2_b"]
    torch.testing.assert_close(found, 2 * torch.kron(parts["lokr_w1"], second), atol=1e-6, rtol=1e-4)


@pytest.mark.proves("vera")
def test_vera_scales_matrices_that_all_layers_share(bench: Any, tmp_path: Path) -> None:
    adapted = VeRA(rank=4, target_modules="q_proj").build(model=bench.base(), seed=0)
    bench.train(adapted.model)
    adapted.save(tmp_path / "adapter", "base")
    saved = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    scale, between = saved[PLACE + "vera_lambda_b"], saved[PLACE + "vera_lambda_d"]
    wanted = scale[:, None] * saved["base_model.vera_B"] @ (between[:, None] * saved["base_model.vera_A"])
    place = "model.layers.1.self_attn.q_proj"
    found = adapted.merged().get_submodule(place).weight - bench.base().get_submodule(place).weight
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-4)
    assert not [name for name in adapted.state() if "vera_A" in name or "vera_B" in name]


@pytest.mark.proves("vera")
@pytest.mark.parametrize("drawn", ["bf16", "another key"])
def test_vera_is_opened_with_the_matrices_that_it_was_trained_with(bench: Any, tmp_path: Path, drawn: str) -> None:
    """Over a base in bf16 they are drawn in bf16; what was trained so is exported over the same base in fp32."""
    precision = {"dtype": torch.bfloat16} if drawn == "bf16" else {}
    one = VeRA(rank=4, projection_prng_key=3).build(model=bench.base(**precision), seed=0)
    torch.manual_seed(0)
    one.load({name: torch.randn_like(weight) for name, weight in one.state().items()})
    one.save(tmp_path / "adapter", "base")
    key = 3 if drawn == "bf16" else 1
    other, own = (VeRA(rank=4, projection_prng_key=key).build(model=bench.base(), seed=0) for _ in range(2))
    other.load(other.read(tmp_path / "adapter"))
    saved = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert all(torch.equal(weight, saved[name]) for name, weight in other.trained().items())
    again = VeRA(rank=4, projection_prng_key=key).build(model=bench.base(), seed=0)
    again.load(other.state())
    assert torch.equal(bench.logits(again.model), bench.logits(other.model))
    other.load(own.state())  # of somebody who trains with those that were drawn here
    assert torch.equal(bench.logits(other.model), bench.logits(own.model))


@pytest.mark.proves("vera")
def test_vera_without_its_matrices_is_refused(bench: Any, tmp_path: Path) -> None:
    """They are drawn alike on like machines alone."""
    adapted = VeRA(rank=4).build(model=bench.base(), seed=0)
    adapted.save(tmp_path / "adapter", "base")
    save_file(adapted.state(), tmp_path / "adapter" / "adapter_model.safetensors")
    with pytest.raises(GymError, match="random matrices are not in"):
        adapted.read(tmp_path / "adapter")


@pytest.mark.proves("vera")
def test_vera_needs_no_seed_to_be_read_again(bench: Any, tmp_path: Path) -> None:
    one = VeRA(rank=4).build(model=bench.base(), seed=5)
    bench.train(one.model)
    one.save(tmp_path / "adapter", "base")
    other = VeRA(rank=4).build(model=bench.base(), seed=0)
    other.load(other.read(tmp_path / "adapter"))
    assert torch.equal(bench.logits(other.model), bench.logits(one.model))


@pytest.mark.proves("ia3")
def test_ia3_scales_keys_values_and_hidden_units(bench: Any) -> None:
    adapted = IA3().build(model=bench.base(), seed=0)
    bench.train(adapted.model)
    merged, base, state = adapted.merged(), bench.base(), adapted.state()
    for place, shape in (("self_attn.k_proj", (8, 1)), ("self_attn.v_proj", (8, 1)), ("mlp.down_proj", (1, 32))):
        name = f"model.layers.0.{place}"
        factor = state[f"base_model.model.{name}.ia3_l"]
        assert factor.shape == shape
        torch.testing.assert_close(merged.get_submodule(name).weight, base.get_submodule(name).weight * factor)


@pytest.mark.proves("ia3")
def test_ia3_asks_for_names_it_does_not_know(bench: Any) -> None:
    config = AutoConfig.for_model("gpt2", vocab_size=60, n_embd=16, n_layer=2, n_head=2)
    with pytest.raises(GymError, match=r"no projections to keys and values[^\n]*\n.*modules"):
        IA3().build(model=AutoModelForCausalLM.from_config(config), seed=0)
    with pytest.raises(GymError, match="`up_proj` is not among `target_modules`"):
        IA3(target_modules="q_proj", feedforward_modules="up_proj").build(model=bench.base(), seed=0)


@pytest.mark.proves("ln_tuning")
def test_ln_tuning_trains_norms_and_nothing_else(bench: Any) -> None:
    adapted = LNTuning().build(model=bench.base(), seed=0)
    bench.train(adapted.model)
    before, after = dict(bench.base().named_parameters()), dict(adapted.merged().named_parameters())
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {name for name in before if "norm" in name}
