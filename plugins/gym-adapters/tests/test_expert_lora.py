"""LoRA of experts: every expert has an update of its own, merged into the tensor that holds them all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gym_adapters_families import family, samples
from peft import PeftModel
from peft.tuners.lora.layer import ParamWrapper
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from gym_adapters import ExpertLoRA
from gym_core import GymError
from gym_optim.base import matrices
from gym_testkit.architectures import EXPERTS, SHAPE
from gym_torch.batch import packed, padded
from gym_torch.checkpoints.open_artifact import open_artifact
from gym_torch.memory.gradient_checkpointing import recompute_layers
from gym_torch.model.adapted import AdaptedModel
from gym_torch.model.layout_support import layout_for
from gym_torch.model.parameter_groups import groups_of
from gym_torch.packing import PACKED
from gym_torch.policy import Policy

TOKENS = torch.arange(3, 35).view(2, 16)
KINDS = [
    ExpertLoRA(rank=2),
    ExpertLoRA(rank=2, target_parameters="down_proj"),
    ExpertLoRA(rank=2, target_modules="q_proj,v_proj"),
]


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    family("qwen3_moe").save_pretrained(tmp_path / "mixture")
    return tmp_path / "mixture"


def base(path: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def trained(config: ExpertLoRA, path: Path) -> AdaptedModel:
    adapted: AdaptedModel = config.build(model=base(path), seed=0)
    optimizer = torch.optim.AdamW([weight for weight in adapted.model.parameters() if weight.requires_grad], lr=0.02)
    for _ in range(3):
        optimizer.zero_grad()
        adapted.model(TOKENS, labels=TOKENS).loss.backward()
        optimizer.step()
    return adapted


@pytest.mark.proves("expert_lora")
@pytest.mark.parametrize("config", KINDS, ids=["all", "down", "with attention"])
def test_unchanged_merged_saved_and_restored(config: ExpertLoRA, stored: Path, tmp_path: Path) -> None:
    with torch.no_grad():
        assert torch.equal(config.build(model=base(stored), seed=0).model(TOKENS).logits, base(stored)(TOKENS).logits)
        with torch.enable_grad():
            adapted = trained(config, stored)
        expected = adapted.model(TOKENS).logits
        assert float((expected - base(stored)(TOKENS).logits).abs().max()) > 1e-2
        assert adapted.disable_adapter is not None
        with adapted.disable_adapter():
            assert torch.equal(adapted.model(TOKENS).logits, base(stored)(TOKENS).logits)
        merged = adapted.merged()
        torch.testing.assert_close(merged(TOKENS).logits, expected, atol=1e-5, rtol=1e-5)
        assert {name for name, _ in merged.named_parameters()} == {name for name, _ in base(stored).named_parameters()}
        merged.save_pretrained(tmp_path / "merged")
        assert torch.equal(base(tmp_path / "merged")(TOKENS).logits, merged(TOKENS).logits)
        artifact = adapted.save(tmp_path / "adapter", str(stored), exact=True)
        assert torch.equal(open_artifact(artifact).model(TOKENS).logits, expected)
        peft = PeftModel.from_pretrained(base(stored), str(tmp_path / "adapter"))
        torch.testing.assert_close(peft(TOKENS).logits, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.proves("expert_lora")
def test_each_expert_has_its_own_update(stored: Path) -> None:
    adapted = trained(ExpertLoRA(rank=2, alpha=6, target_parameters="experts.down_proj"), stored)
    (place,) = {name.rpartition(".lora_")[0] for name in adapted.state() if ".layers.1." in name}
    lower, upper = (adapted.state()[f"{place}.lora_{part}.weight"] for part in "AB")
    assert lower.shape == (4 * 2, 16) and upper.shape == (32, 2 * 4)
    change = [
        model.get_parameter("model.layers.1.mlp.experts.down_proj").detach()
        for model in (adapted.merged(), base(stored))
    ]
    for expert in range(4):
        wanted = 3 * upper.view(32, 2, 4)[:, :, expert] @ lower.view(4, 2, 16)[expert]
        torch.testing.assert_close(change[0][expert] - change[1][expert], wanted, atol=1e-6, rtol=1e-4)
    assert sum(weight.numel() for weight in adapted.state().values()) == 2 * 4 * 2 * (32 + 16)


@pytest.mark.proves("expert_lora")
def test_packed_and_checkpointed(stored: Path) -> None:
    model = base(stored)
    assert layout_for(model) is PACKED
    adapted = ExpertLoRA(rank=2).build(model=model, seed=0)
    with torch.no_grad():
        for weight in adapted.state().values():
            weight.add_(0.1)
    policy = Policy(model).train()
    wanted = policy(padded(samples()))
    recompute_layers(model)
    found = policy(packed(samples()))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    for one, other in zip(
        torch.autograd.grad(found.sum(), weights), torch.autograd.grad(wanted.sum(), weights), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_one_layer_can_be_named(stored: Path) -> None:
    config = ExpertLoRA(rank=2, target_parameters="layers.1.mlp.experts.down_proj")
    adapted = config.build(model=base(stored), seed=0)
    assert {name.split(".")[4] for name in adapted.state()} == {"1"} and not config.uniform_layers()
    assert adapted.describe() == "rank 2, alpha 4: experts.down_proj"
    both = ExpertLoRA(rank=2, target_modules="q_proj", modules_to_save="norm").build(model=base(stored), seed=0)
    assert both.describe() == "rank 2, alpha 4: experts.gate_up_proj, experts.down_proj, q_proj, norm whole"


@pytest.mark.proves("expert_lora")
def test_a_convolution_is_no_mixture() -> None:
    """Its weight has three dimensions too."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "lfm2_moe",
        **SHAPE,
        **EXPERTS,
        layer_types=["conv", "full_attention"],
        num_dense_layers=0,
    )
    adapted = ExpertLoRA(rank=2).build(model=AutoModelForCausalLM.from_config(config), seed=0)
    assert adapted.state() and all("experts" in name for name in adapted.state())


@pytest.mark.proves("expert_lora")
def test_what_is_not_there_is_named(bench: Any, stored: Path) -> None:
    with pytest.raises(GymError, match="no experts in tensors of their own"):
        ExpertLoRA().build(model=bench.base(), seed=0)
    with pytest.raises(GymError, match=r"no experts `w1`[^\n]*\n.*experts.down_proj, experts.gate_up_proj"):
        ExpertLoRA(target_parameters="w1").build(model=base(stored), seed=0)


def test_optimizers_are_told_which_numbers_are_an_experts(stored: Path) -> None:
    """B_e A_e of the factors that groups tell, scaled, is what peft adds to expert e; layers of their own keep their scaling."""
    adapted = trained(ExpertLoRA(rank=2, target_modules="q_proj"), stored)
    groups = groups_of(adapted.model)
    held = {name: (weight.detach(), group) for group in groups for name, weight in group["params"]}
    layers = [(name, layer) for name, layer in adapted.model.named_modules() if isinstance(layer, ParamWrapper)]
    assert layers and {group.get("scaling") for group in groups if "experts" not in group} == {2.0}
    for path, layer in layers:
        factors = [matrices(*held[f"{path}.lora_{half}.default.weight"]) for half in "AB"]
        assert [factor.dim() for factor in factors] == [3, 3]
        delta = layer.scaling["default"] * factors[1] @ factors[0]
        torch.testing.assert_close(
            delta, layer.get_delta_weight("default").detach().view_as(delta), rtol=1e-5, atol=1e-7
        )
