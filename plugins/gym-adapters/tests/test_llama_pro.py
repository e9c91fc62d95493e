"""LLaMA-Pro: new blocks that change nothing at first, train alone, and are part of a plain model afterwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from gym_adapters_families import family, samples
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from gym_adapters import Freeze, LLaMAPro
from gym_core import GymError
from gym_testkit.architectures import FAMILIES, SHAPE
from gym_torch.batch import packed, padded
from gym_torch.model.layout_support import layout_for
from gym_torch.packing import PACKED
from gym_torch.policy import Policy


@pytest.mark.proves("llama_pro")
@pytest.mark.parametrize("blocks", [1, 3])
def test_new_blocks_train_alone_and_the_output_is_unchanged(bench: Any, blocks: int) -> None:
    adapted = LLaMAPro(blocks=blocks).build(model=bench.base(), seed=0)
    model = adapted.model
    assert model.config.num_hidden_layers == len(model.model.layers) == 3 + blocks
    assert torch.equal(bench.logits(model), bench.logits(bench.base()))
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    bench.train(model)
    moved = {name for name, weight in model.named_parameters() if not torch.equal(weight, before[name])}
    new = {1: {3}, 3: {1, 3, 5}}[blocks]
    assert {int(name.split(".")[2]) for name in moved} == new
    assert moved == set(adapted.state()) and any("q_proj" in name for name in moved)
    expected = bench.logits(model)
    with adapted.disable_adapter():
        assert torch.equal(bench.logits(model), bench.logits(bench.base()))
    assert torch.equal(bench.logits(model), expected)


@pytest.mark.proves("llama_pro")
def test_what_is_saved_is_a_larger_plain_model(bench: Any, tmp_path: Path) -> None:
    adapted = LLaMAPro(blocks=3).build(model=bench.base(), seed=0)
    bench.train(adapted.model)
    artifact = adapted.save(tmp_path / "saved", "base", exact=True)
    assert artifact.kind == "model"
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["num_hidden_layers"] == 6
    expected = bench.logits(adapted.model)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.equal(bench.logits(plain), expected) and torch.equal(bench.logits(adapted.merged()), expected)
    other = LLaMAPro(blocks=3).build(model=bench.base(), seed=0)
    other.load(other.read(tmp_path / "saved"))
    assert torch.equal(bench.logits(other.model), expected)


@pytest.mark.proves("freeze", "llama_pro")
def test_freeze_goes_on_training_the_new_blocks(bench: Any, tmp_path: Path) -> None:
    LLaMAPro(blocks=3).build(model=bench.base(), seed=0).save(tmp_path / "larger", "base")
    adapted = Freeze(trainable_layers=3, spread=True).build(
        model=AutoModelForCausalLM.from_pretrained(tmp_path / "larger"), seed=0
    )
    assert {int(name.split(".")[2]) for name in adapted.state()} == {1, 3, 5}
    with pytest.raises(GymError, match="6 layers are not 4 equal parts"):
        Freeze(trainable_layers=4, spread=True).build(
            model=AutoModelForCausalLM.from_pretrained(tmp_path / "larger"), seed=0
        )


@pytest.mark.proves("llama_pro")
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family(name: str) -> None:
    model, tokens = family(name), torch.arange(3, 25).view(2, 11)
    wanted = model(tokens).logits
    adapted = LLaMAPro(blocks=2).build(model=model, seed=0)
    torch.testing.assert_close(adapted.model(tokens).logits, wanted, rtol=1e-5, atol=1e-5)
    ids = tokens[:1]
    made = adapted.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=5, do_sample=False)
    whole = adapted.model(made, use_cache=False).logits[0, 10:-1].argmax(-1)
    assert made[0, 11:].tolist() == whole.tolist()[: made.shape[1] - 11]  # each layer has a cache of its own
    assert layout_for(adapted.model) is PACKED
    torch.testing.assert_close(Policy(adapted.model)(packed(samples())), Policy(adapted.model)(padded(samples())))


@pytest.mark.proves("llama_pro")
def test_numbers_that_do_not_divide_are_refused(bench: Any) -> None:
    with pytest.raises(GymError, match=r"3 layers cannot be parted by 2 new blocks[^\n]*\n.*1, 3"):
        LLaMAPro(blocks=2).build(model=bench.base(), seed=0)


def mixture(kind: str, **options: Any) -> PreTrainedModel:
    """Return a mixture of experts, all of whose numbers are drawn: biases too."""
    config = AutoConfig.for_model(kind, **SHAPE | {"num_experts_per_tok": 2, "moe_intermediate_size": 16} | options)
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    return model


@pytest.mark.proves("llama_pro")
def test_biases_of_experts_are_silent_too() -> None:
    model = mixture("gpt_oss", num_local_experts=4, layer_types=["sliding_attention", "full_attention"])
    tokens = torch.arange(3, 25).view(2, 11)
    wanted = model(tokens).logits
    adapted = LLaMAPro(blocks=1).build(model=model, seed=0)
    torch.testing.assert_close(adapted.model(tokens).logits, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.proves("llama_pro")
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("qwen3_moe", {"num_experts": 4, "mlp_only_layers": [0]}),
        ("glm4_moe", {"n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1}),
    ],
)
def test_a_configuration_that_makes_other_layers_of_the_new_numbers_is_refused(
    kind: str, options: dict[str, Any], tmp_path: Path
) -> None:
    model = mixture(kind, **options)
    with pytest.raises(GymError, match=r"layer 1 [^\n]*\n.*adapter: freeze or lora"):
        LLaMAPro(blocks=2).build(model=model, seed=0)
    model = mixture(kind, **options)
    tokens = torch.arange(3, 25).view(2, 11)
    adapted = LLaMAPro(blocks=1).build(model=model, seed=0)  # at the end, where no number changes
    adapted.save(tmp_path / "saved", "base")
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "saved").eval()
    torch.testing.assert_close(saved(tokens).logits, adapted.model(tokens).logits)
