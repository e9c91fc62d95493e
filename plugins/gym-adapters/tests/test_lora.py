"""LoRA: changes nothing before training, leaves the base alone, and computes the same merged, saved and restored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from gym_adapters import LoRA
from gym_adapters.tuners.lora import LoraAdapter
from gym_core import GymError

KINDS = [
    LoRA(),
    LoRA(rank=3, alpha=5.0, target_modules="q_proj, v_proj"),
    LoRA(target_modules=("mlp.up_proj", "embed_tokens")),
    LoRA(target_modules="o_proj,lm_head"),
    LoRA(target_modules="embed_tokens,lm_head"),
    LoRA(modules_to_save="embed_tokens"),
    LoRA(modules_to_save=("lm_head",)),
]
names = [f"{kind.target_modules}+{kind.modules_to_save}" for kind in KINDS]


@pytest.fixture(scope="module", params=KINDS, ids=names)
def trained(request: pytest.FixtureRequest, bench: Any) -> LoraAdapter:
    """Return an adapter that learned, which no test changes."""
    adapted: LoraAdapter = request.param.build(model=bench.base(), seed=0)
    bench.train(adapted.model)
    return adapted


@pytest.mark.proves("lora")
@pytest.mark.parametrize("config", KINDS, ids=names)
def test_output_is_unchanged_before_training(bench: Any, config: LoRA) -> None:
    assert torch.equal(bench.logits(config.build(model=bench.base(), seed=0).model), bench.logits(bench.base()))


@pytest.mark.proves("lora")
def test_the_base_is_untouched(bench: Any, trained: LoraAdapter) -> None:
    before = bench.base().state_dict()
    assert (bench.logits(trained.model) - bench.logits(bench.base())).abs().max() > 1e-2
    with trained.peft_model.disable_adapter():
        assert torch.equal(bench.logits(trained.model), bench.logits(bench.base()))
    own = {
        name.replace(".base_layer", "").replace(".original_module", ""): w
        for name, w in trained.model.named_parameters()
    }
    assert all(torch.equal(weight, before[name]) for name, weight in own.items() if name in before)


@pytest.mark.proves("lora")
def test_merged_computes_the_same_and_leaves_the_adapter(bench: Any, trained: LoraAdapter) -> None:
    before = bench.logits(trained.model)
    merged = trained.merged()
    difference = float((bench.logits(merged) - before).abs().max() / before.abs().max())
    assert difference < 2e-6
    assert torch.equal(bench.logits(trained.model), before)
    assert not any("lora" in name for name in merged.state_dict())


def test_an_adapter_that_holds_nan_is_named_where_it_is_merged(bench: Any, trained: LoraAdapter) -> None:
    weight = next(weight for name, weight in trained.model.named_parameters() if "lora_A" in name)
    before = weight.detach().clone()
    weight.data.fill_(float("nan"))
    with pytest.raises(GymError, match="NaN or infinity"):
        list(trained.merged_weights().weights)
    weight.data.copy_(before)


def test_merged_survives_a_file(bench: Any, trained: LoraAdapter, tmp_path: Path) -> None:
    merged = trained.merged()
    merged.save_pretrained(tmp_path / "merged")
    assert torch.equal(bench.logits(AutoModelForCausalLM.from_pretrained(tmp_path / "merged")), bench.logits(merged))


@pytest.mark.proves("lora")
def test_plain_peft_loads_it(bench: Any, trained: LoraAdapter, tmp_path: Path) -> None:
    artifact = trained.save(tmp_path / "adapter", str(tmp_path / "base"))
    assert artifact.kind == "adapter" and artifact.details["adapter"] == "gym_adapters:LoRA"
    plain = PeftModel.from_pretrained(bench.base(), str(tmp_path / "adapter"))
    # Sums are made in another order, so that the last bits may differ.
    torch.testing.assert_close(bench.logits(plain), bench.logits(trained.model), rtol=1e-5, atol=2e-6)
    written = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert written["base_model_name_or_path"] == str(tmp_path / "base")
    assert {path.suffix for path in (tmp_path / "adapter").iterdir()} <= {".json", ".safetensors", ".md"}


def test_saved_and_restored_bit_for_bit(bench: Any, trained: LoraAdapter, tmp_path: Path) -> None:
    trained.save(tmp_path / "adapter", "base", exact=True)
    other: LoraAdapter = trained.config.build(model=bench.base(), seed=1)
    other.load(other.read(tmp_path / "adapter"))
    assert all(torch.equal(weight, other.state()[name]) for name, weight in trained.state().items())
    assert torch.equal(bench.logits(other.model), bench.logits(trained.model))
    copied = {name: weight.clone() for name, weight in trained.state().items()}
    again: LoraAdapter = trained.config.build(model=bench.base(), seed=2)
    again.load(copied)
    assert torch.equal(bench.logits(again.model), bench.logits(trained.model))


def test_state_is_all_that_trains(trained: LoraAdapter) -> None:
    training = sum(weight.numel() for weight in trained.model.parameters() if weight.requires_grad)
    assert sum(weight.numel() for weight in trained.state().values()) == training


def test_the_seed_is_the_adapter(bench: Any) -> None:
    torch.manual_seed(5)
    one = LoRA().build(model=bench.base(), seed=3)
    after = torch.get_rng_state()
    torch.manual_seed(5)
    assert torch.equal(torch.get_rng_state(), after)
    torch.manual_seed(6)
    same, other = LoRA().build(model=bench.base(), seed=3), LoRA().build(model=bench.base(), seed=4)
    assert all(torch.equal(weight, same.state()[name]) for name, weight in one.state().items())
    assert not all(torch.equal(weight, other.state()[name]) for name, weight in one.state().items())


def test_a_bf16_base_has_an_fp32_adapter(bench: Any) -> None:
    adapted = LoRA(modules_to_save="lm_head").build(model=bench.base(dtype=torch.bfloat16), seed=0)
    assert all(weight.dtype == torch.float32 for weight in adapted.state().values())
    with torch.autocast("cpu", torch.bfloat16):
        bench.train(adapted.model)
        assert torch.isfinite(bench.logits(adapted.model)).all()


def test_every_linear_layer_but_the_head(bench: Any) -> None:
    adapted = LoRA().build(model=bench.base(), seed=0)
    found = {name.split(".")[-3] for name in adapted.state()}
    assert found == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def test_alpha_is_twice_the_rank(bench: Any) -> None:
    default, doubled = (
        LoRA(rank=4).build(model=bench.base(), seed=0),
        LoRA(rank=4, alpha=8.0).build(model=bench.base(), seed=0),
    )
    bench.train(default.model)
    doubled.load(default.state())
    assert torch.equal(bench.logits(default.model), bench.logits(doubled.model))


@pytest.mark.parametrize("config", [LoRA(target_modules="q_proj,w_pack"), LoRA(modules_to_save="w_pack")])
def test_a_module_that_is_not_there_is_named(bench: Any, config: LoRA) -> None:
    with pytest.raises(GymError, match=r"no module `w_pack`[^\n]*\n.*down_proj"):
        config.build(model=bench.base(), seed=0)


def test_the_word_of_peft_for_every_layer_is_answered_with_ours(bench: Any) -> None:
    with pytest.raises(GymError, match="did you mean `all`"):
        LoRA(target_modules="all-linear").build(model=bench.base(), seed=0)


def test_another_adapter_is_refused(bench: Any, trained: LoraAdapter) -> None:
    with pytest.raises(GymError, match="belong to another model or adapter"):
        LoRA(rank=7).build(model=bench.base(), seed=0).load(trained.state())


def test_the_chunked_head_reaches_every_trained_weight(bench: Any, trained: LoraAdapter) -> None:
    bench.check_head(trained.model.train())
