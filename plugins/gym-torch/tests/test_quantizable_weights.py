"""What is quantized of a model, and what stays: said where nobody expects it, refused where it is most of the model."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gym_torch_bench import make_run
from gym_torch_quantized import ALIVE, Rows
from transformers import AutoConfig, AutoModelForCausalLM

from gym_adapters import LoRA
from gym_core import GymError
from gym_testkit.architectures import EXPERTS, SHAPE, build
from gym_torch import Transformers
from gym_torch.model.adapted import adapt, skeleton
from gym_torch.model.empty_model import empty
from gym_torch.model.loading import LoadedModel
from gym_torch.quantization.quantizable_weights import left_over, routing, to_quantize
from gym_torch.quantization.weights import plain_state, quantized_layers, stored_modules

TOKENS = torch.tensor([[5, 3, 8, 1, 9, 2, 2, 7]])
GPT2 = [
    f"transformer.h.{layer}.{name}"
    for layer in (0, 1)
    for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
]
#: A mixture whose experts lie in tensors that no interface of transformers declares.
JETMOE = {**SHAPE, "kv_channels": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 2}
UNKNOWN = ["model.layers.*.mlp.input_linear", "model.layers.*.mlp.output_linear"]


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., tuple[LoadedModel, dict[str, Any]]]:
    """Return what writes a model, loads it as a run of LoRA does, and returns it with `run.json`."""

    def load(model: Any, skipped: tuple[str, ...] = (), **options: Any) -> tuple[LoadedModel, dict[str, Any]]:
        ALIVE.clear()
        model.save_pretrained(tmp_path / "model")
        quantization = Rows(modules_to_not_convert=skipped)
        sections = {
            "model": Transformers(path=str(tmp_path / "model"), quantization=quantization, **options),
            "adapter": LoRA(rank=2),
        }
        run = make_run(tmp_path / "model", tmp_path / "run", sections=sections, precision="fp32")
        return run.recipe.model.build(run=run), run.record.read().get("quantized_weights", {})

    return load


def drawn(kind: str, **options: Any) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **options))


@pytest.mark.parametrize("init", ["pretrained", "random"])
def test_layers_of_gpt2_are_quantized_and_compute_with_what_is_decoded(load: Any, init: str, tmp_path: Path) -> None:
    plain = build("gpt2")
    loaded, told = load(plain, init=init)
    model = loaded.model.eval()
    assert quantized_layers(model).keys() == set(GPT2) and told["parameters"] == 2 * 12 * 32 * 32
    assert told["full_precision"] == {"parameters": 0, "modules": []}
    found = dict(plain_state(model))
    assert all(found[name].shape == weight.shape for name, weight in plain.state_dict().items())
    if init == "pretrained":
        for name in GPT2:
            weight = plain.get_submodule(name).weight.detach()
            error = (found[f"{name}.weight"] - weight).abs()
            assert float((error / weight.abs().amax(0, keepdim=True)).max()) < 0.005, "a row of `[out, in]` has a scale"
    plain.load_state_dict(found)
    with torch.no_grad():
        torch.testing.assert_close(model(TOKENS).logits, plain(TOKENS).logits, atol=1e-5, rtol=1e-4)
    planned = empty(Transformers(path=str(tmp_path / "model"), quantization=Rows()), "fp32", None, torch.device("cpu"))
    sizes = [
        sum(t.nbytes for m in stored_modules(each).values() for t in m.buffers()) for each in (model, planned.model)
    ]
    assert sizes[0] == sizes[1] == told["bytes"] > 0


def test_lora_over_layers_of_gpt2_has_the_gradients_of_decoded_ones_and_is_merged(load: Any, tmp_path: Path) -> None:
    found = []
    for kind in ("stored", "decoded"):
        model = load(build("gpt2"))[0].model
        if kind == "decoded":
            for name, layer in quantized_layers(model).items():
                model.set_submodule(name, layer.plain(torch.float32))
        recipe = make_run(tmp_path, tmp_path / "other", sections={"adapter": LoRA(rank=2)}).recipe
        adapted = adapt(model, recipe)
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        for index, weight in enumerate(trained):
            weight.data = torch.randn(weight.shape, generator=torch.Generator().manual_seed(index)) / 20
        loss = model.eval()(TOKENS, labels=TOKENS).loss
        loss.backward()
        found.append([loss.detach(), *(weight.grad for weight in trained)])
        with torch.no_grad():
            torch.testing.assert_close(adapted.merged()(TOKENS).logits, model(TOKENS).logits, atol=1e-5, rtol=1e-4)
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


def test_experts_that_nobody_knows_are_refused_unless_they_are_named(load: Any, capsys: Any) -> None:
    model = drawn("jetmoe", **JETMOE)
    with pytest.raises(
        GymError, match=r"\d\d % of the weights of JetMoe.*model\.layers\.\*\.mlp\.input_linear"
    ) as caught:
        load(model)
    assert (
        "modules_to_not_convert: [" in caught.value.problems[0].fix
        and "mlp.output_linear" in caught.value.problems[0].fix
    )
    loaded, told = load(model, skipped=("mlp", "experts"))
    left = told["full_precision"]
    assert left["parameters"] == 2 * 4 * (96 * 32 + 32 * 48 + 2 * 16 * 32)
    assert left["modules"] == sorted(
        UNKNOWN + [f"model.layers.*.self_attention.experts.{end}put_linear" for end in ("in", "out")]
    )
    assert quantized_layers(loaded.model).keys() == {f"model.layers.{layer}.self_attention.kv_proj" for layer in (0, 1)}
    assert "parameters stay in full precision: model.layers.*.mlp" in capsys.readouterr().err


def test_a_plan_refuses_what_loading_does(load: Any, tmp_path: Path) -> None:
    drawn("jetmoe", **JETMOE).save_pretrained(tmp_path / "model")
    with pytest.raises(GymError, match="would stay in full precision"):
        empty(Transformers(path=str(tmp_path / "model"), quantization=Rows()), "fp32", None, torch.device("cpu"))


def test_what_stays_by_convention_is_nothing_to_say() -> None:
    for model in (build("qwen3_moe"), build("qwen3"), build("gemma2"), build("phi")):
        wanted = to_quantize(model)
        assert wanted.weights and not left_over(model, wanted.weights)


ROUTERS = {
    "qwen2_moe": ["mlp.gate"],
    "mixtral": ["mlp.gate"],
    "llama4_text": ["feed_forward.router"],
    "jetmoe": ["mlp.router.layer", "self_attention.experts.router.layer"],
}


@pytest.mark.parametrize("kind", ROUTERS)
def test_layers_as_wide_as_there_are_experts_are_no_routers(kind: str) -> None:
    """As keys, values and the shared expert of Qwen3-Next, which has 512 of each."""
    experts = {"num_experts": 32, "num_local_experts": 32, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    kept = {"intermediate_size": 32, "intermediate_size_mlp": 32, "shared_expert_intermediate_size": 32}
    config = AutoConfig.for_model(kind, **SHAPE | experts | kept | {"num_key_value_heads": 4, "kv_channels": 4})
    model = skeleton(config, AutoModelForCausalLM.from_config)
    routers = routing(model)
    found = {
        re.sub(r"model\.layers\.\d+\.", "", name) for name, each in model.named_parameters() if id(each) in routers
    }
    assert found == {f"{name}.weight" for name in ROUTERS[kind]}


def test_modules_that_are_named_stay_as_they_are(load: Any) -> None:
    plain = drawn("qwen3_moe", **SHAPE | EXPERTS)
    loaded, told = load(plain, skipped=("layers.0", "o_proj", "mlp.experts.down_proj"))
    assert quantized_layers(loaded.model).keys() == {f"model.layers.1.self_attn.{each}_proj" for each in "qkv"}
    assert stored_modules(loaded.model).keys() - quantized_layers(loaded.model).keys() == {"model.layers.1.mlp.experts"}
    layer = "model.layers.*"
    assert told["full_precision"] == {
        "parameters": 4 * (3 + 1) * 16 * 32 + (2 + 1) * 32 * 32 + 2 * 16 * 32,
        "modules": [f"{layer}.mlp.experts", *(f"{layer}.self_attn.{each}_proj" for each in "koqv")],
    }


@pytest.mark.parametrize(
    ("skipped", "why"), [(("nothing",), "no module called nothing"), (("h",), "no linear layers to quantize but h")]
)
def test_names_that_leave_nothing_or_are_none_are_refused(load: Any, skipped: tuple[str, ...], why: str) -> None:
    with pytest.raises(GymError, match=why):
        load(build("gpt2"), skipped=skipped)
