"""What all of the LoRA family keep: begin as the base, compute the same merged and for peft, and open again as they were."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from adapters_bench import Bench
from peft import PeftModel
from transformers import AutoConfig, AutoModelForCausalLM

from gym_adapters import BOFT, EVA, AdaLoRA, DoRA, LoftQ, LoRA, LoRAGA, OLoRA, PiSSA, RsLoRA
from gym_core import GymError
from gym_testkit.architectures import EXPERTS, SHAPE
from gym_torch.kinds import Adapter

FAMILY: list[LoRA] = [
    RsLoRA(rank=3, alpha=5.0),
    DoRA(rank=3),
    DoRA(rank=3, target_modules="embed_tokens,q_proj", modules_to_save="lm_head"),
    PiSSA(rank=3),
    PiSSA(rank=3, alpha=5.0, iterations=-1, dropout=0.1),
    PiSSA(rank=3, target_modules="q_proj,lm_head", modules_to_save="embed_tokens"),
    OLoRA(rank=3),
    LoRAGA(rank=3),
    LoRAGA(rank=3, target_modules="q_proj,v_proj", stable_gamma=64),
    EVA(rank=3),
    AdaLoRA(rank=4, target_rank=2),
    AdaLoRA(rank=4, target_rank=2, target_modules="q_proj,up_proj", modules_to_save="embed_tokens"),
]
LOFTQ = [LoftQ(rank=3), LoftQ(rank=3, alpha=5.0, bits=2, iterations=2)]
names = [f"{type(kind).__name__}-{number}" for number, kind in enumerate(FAMILY + LOFTQ)]


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max() / other.abs().max())


@pytest.fixture
def bench(model_folder: Path) -> Bench:
    """Return a tied Qwen3: an untied model is the easier one, and what all have in common is tested with both."""
    return Bench("qwen3", True, model_folder)


@pytest.mark.proves("dora", "eva", "lora_ga", "olora", "pissa", "rslora")
@pytest.mark.parametrize("config", FAMILY, ids=names[: len(FAMILY)])
def test_it_begins_as_the_base_leaves_it_and_is_for_peft_what_it_is_here(
    bench: Bench, config: Adapter, tmp_path: Path
) -> None:
    adapted, base = bench.begun(config), bench.logits(bench.base())
    assert apart(bench.logits(adapted.model), base) < 1e-5
    bench.train(adapted.model)
    trained = bench.logits(adapted.model)
    assert apart(trained, base) > 1e-2
    with adapted.disable_adapter():
        assert torch.equal(bench.logits(adapted.model), base)
    adapted.save(tmp_path / "adapter", "base")
    plain = PeftModel.from_pretrained(bench.base(), str(tmp_path / "adapter"))
    assert apart(bench.logits(plain.get_base_model()), trained) < 1e-5
    assert {path.suffix for path in (tmp_path / "adapter").iterdir()} <= {".json", ".safetensors", ".md"}


@pytest.mark.proves("dora", "eva", "loftq", "lora_ga", "olora", "pissa", "rslora")
@pytest.mark.parametrize("config", FAMILY + LOFTQ, ids=names)
def test_merged_it_computes_the_same_and_opened_again_too(bench: Bench, config: LoRA, tmp_path: Path) -> None:
    """With another seed, and without the data that it began with."""
    adapted = bench.begun(config)
    said = adapted.describe()
    assert said.startswith(f"rank {config.rank}") and "q_proj" in said and "alpha" in said
    bench.train(adapted.model)
    trained = bench.logits(adapted.model)
    merged = adapted.merged()
    assert apart(bench.logits(merged), trained) < 1e-5
    assert not any("lora" in name for name in merged.state_dict())
    assert torch.equal(bench.logits(adapted.model), trained)
    adapted.save(tmp_path / "adapter", "base")
    again = config.build(model=bench.base(), seed=7)
    again.load(again.read(tmp_path / "adapter"))
    assert torch.equal(bench.logits(again.model), trained)


def test_loftq_cannot_be_left_out(bench: Bench) -> None:
    assert LoftQ(rank=3).build(model=bench.base(), seed=0).disable_adapter is None


@pytest.mark.parametrize("config", [LoRA(rank=3), DoRA(rank=3), AdaLoRA(rank=4, target_rank=2), BOFT(block_size=4)])
def test_merging_into_a_quantized_base_is_refused_by_name(bench: Bench, config: Adapter) -> None:
    adapted = bench.begun(config)
    layer = adapted.model.get_submodule("model.layers.1.mlp.up_proj")
    layer = getattr(layer, "get_base_layer", lambda: layer)()
    layer.weight = torch.nn.Parameter(layer.weight.to(torch.int8), requires_grad=False)
    with pytest.raises(GymError, match=r"layers\.1\.mlp\.up_proj is quantized \(int8\) and cannot be merged into"):
        adapted.merged()


@pytest.mark.proves("loftq", "olora", "pissa")
@pytest.mark.parametrize("config", [PiSSA(rank=4), OLoRA(rank=4), LoftQ(rank=4)])
def test_all_of_a_mixture_is_taken_apart_but_gates_of_one_output(config: Adapter) -> None:
    options = SHAPE | EXPERTS | {"shared_expert_intermediate_size": 16}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen2_moe", **options))
    adapted = config.build(model=model, seed=0)
    adapted.initialize(())
    assert "shared_expert.up_proj.lora_A" in " ".join(adapted.trained())
    assert "shared_expert_gate" not in " ".join(adapted.trained())


@pytest.mark.proves("olora")
@pytest.mark.parametrize("config", [PiSSA(rank=17), OLoRA(rank=17), LoftQ(rank=17)])
def test_a_rank_that_a_weight_does_not_have_is_an_error(bench: Bench, config: Adapter) -> None:
    with pytest.raises(
        GymError, match=r"_proj has no rank of 17[^\n]*\n.*rank of at most \d+, or name `target_modules`"
    ):
        bench.begun(config)


@pytest.mark.parametrize("config", [LoRAGA(rank=3), EVA(rank=3)])
def test_what_looks_at_the_first_step_needs_one(bench: Bench, config: Adapter) -> None:
    with pytest.raises(GymError, match="the first step"):
        config.build(model=bench.base(), seed=0).initialize()
