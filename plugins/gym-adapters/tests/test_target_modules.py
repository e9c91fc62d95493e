"""What the names of a recipe stand for: layers, what holds layers, and never anything else without a word."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from gym_adapters_families import family
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from gym_adapters import (
    BOFT,
    EVA,
    IA3,
    OFT,
    DoRA,
    ExpertLoRA,
    Freeze,
    LNTuning,
    LoftQ,
    LoHa,
    LongLoRA,
    LoRA,
    OLoRA,
    PiSSA,
    RsLoRA,
    VeRA,
)
from gym_adapters.fitting_layers import unfit_layers
from gym_adapters.multi_adapter import MultiAdapter
from gym_adapters.target_modules import within
from gym_core import GymError
from gym_testkit import families
from gym_testkit.architectures import SHAPE
from gym_torch.checkpoints.open_artifact import open_artifact
from gym_torch.kinds import Adapter

ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}


def adapted(config: Adapter, model: PreTrainedModel) -> set[str]:
    """Return the paths of what a built adapter trains."""
    built = config.build(model=model, seed=0)
    marks = ("lora_", "hada_", "oft_R", "ia3_l", "vera_lambda")
    names = [name for name, weight in built.model.named_parameters() if weight.requires_grad]
    return {min(name[: name.index(mark) - 1] for mark in marks if mark in name) for name in names}


@pytest.mark.parametrize("kind", [LoRA, PiSSA, LoHa, OFT])
def test_what_is_in_a_module_that_is_named_is_adapted(bench: Any, kind: type[Adapter]) -> None:
    options: dict[str, Any] = {"block_size": 8} if kind is OFT else {"rank": 2}
    found = adapted(kind(target_modules="mlp", **options), bench.base())
    assert found == {f"model.layers.{n}.mlp.{name}_proj" for n in range(3) for name in ("gate", "up", "down")}
    found = adapted(kind(target_modules="layers.1.self_attn,layers.2.mlp.up_proj", **options), bench.base())
    assert found == {f"model.layers.1.self_attn.{name}" for name in ATTENTION} | {"model.layers.2.mlp.up_proj"}


@pytest.mark.proves("ln_tuning")
def test_a_layer_is_no_norm(bench: Any) -> None:
    with pytest.raises(GymError, match=r"no module `mlp`[^\n]*\n.*input_layernorm"):
        LNTuning(target_modules="mlp").build(model=bench.base(), seed=0)


@pytest.mark.proves("ia3")
def test_inputs_of_feed_forward_layers_are_found_by_any_name(bench: Any) -> None:
    state = IA3(target_modules="k_proj,mlp.down_proj").build(model=bench.base(), seed=0).state()
    assert {tuple(weight.shape) for name, weight in state.items() if "down_proj" in name} == {(1, 32)}


@pytest.mark.parametrize(
    "config",
    [LoRA(rank=2, dropout=0.1), DoRA(rank=2), PiSSA(rank=2), OLoRA(rank=2), EVA(rank=2), LoftQ(rank=2), VeRA()],
)
def test_neither_experts_nor_routers_are_linear_layers(config: Adapter) -> None:
    """peft would take both for them, the experts with twice the rank, and fail where there is dropout or a length."""
    found = adapted(config, family("qwen3_moe"))
    assert found == {f"model.layers.{n}.self_attn.{name}" for n in range(2) for name in ATTENTION}


ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "first_k_dense_replace": 1}
LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
#: beside experts in one tensor these have a dense layer, and one expert in layers of its own, called as experts once were
MIXTURES: dict[str, dict[str, Any]] = {
    "glm4_moe": ROUTED,
    "deepseek_v3": ROUTED | LATENT | {"n_group": 1, "topk_group": 1, "num_key_value_heads": 4},
}
FEED = {"gate_proj", "up_proj", "down_proj"}
DENSE = {f"model.layers.0.mlp.{name}" for name in FEED} | {f"model.layers.1.mlp.shared_experts.{name}" for name in FEED}


@pytest.fixture(params=MIXTURES)
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    config = AutoConfig.for_model(request.param, **SHAPE | MIXTURES[request.param])
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def test_names_that_peft_takes_for_experts_are_those_of_layers(shared: Path) -> None:
    def model() -> PreTrainedModel:
        return AutoModelForCausalLM.from_pretrained(shared)

    layers = {name for name, layer in model().named_modules() if isinstance(layer, nn.Linear)}
    attending = {name for name in layers if ".self_attn." in name}
    for kind in (LoRA, DoRA, PiSSA, EVA):
        assert adapted(kind(rank=2), model()) == DENSE | attending
    assert adapted(LoRA(rank=2, target_modules="mlp.shared_experts"), model()) == {
        name for name in DENSE if "shared" in name
    }
    experts = {"model.layers.1.mlp.experts", "model.layers.1.mlp.experts.base_layer"}
    assert adapted(ExpertLoRA(rank=2, target_modules="all"), model()) == DENSE | attending | experts


@torch.no_grad()
def test_what_peft_misreads_is_opened_merged_and_stacked_here(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def model() -> PreTrainedModel:
        return AutoModelForCausalLM.from_pretrained(shared).eval()

    tokens = torch.arange(3, 35).view(2, 16)
    first = LoRA(rank=2).build(model=model(), seed=0)
    for weight in first.state().values():
        weight.add_(0.05)
    wanted = first.model(tokens).logits
    torch.testing.assert_close(first.merged()(tokens).logits, wanted, atol=1e-5, rtol=1e-5)
    artifact = first.save(tmp_path / "first", str(shared), exact=True)
    assert first.model.config.model_type == model().config.model_type
    assert f"peft takes layers of {type(first.model).__name__} for its experts" in " ".join(
        capsys.readouterr().err.split()
    )
    assert torch.equal(open_artifact(artifact).model(tokens).logits, wanted)
    plain = LoRA(rank=2, target_modules="self_attn").build(model=model(), seed=0)
    plain.save(tmp_path / "plain", str(shared), exact=True)
    stack = MultiAdapter(model(), {"plain": tmp_path / "plain", "first": artifact.path})
    stack.use(first=1.0)
    assert torch.equal(stack.model(tokens).logits, wanted)
    both = LoRA(rank=2, adapter_name_or_path=str(artifact.path), create_new_adapter=True).build(model=model(), seed=0)
    assert torch.equal(both.model(tokens).logits, wanted)


@pytest.mark.parametrize(
    ("name", "lost"),
    [
        ("mamba", "x_proj,dt_proj,out_proj"),
        ("jamba", "dt_proj"),
        ("granitemoehybrid", "mamba.out_proj"),
        ("gemma3n_text", "correction_coefs"),
        ("longcat_flash", "classifier"),
        ("llama4_text", "router"),
        ("phimoe", "router"),
        ("deepseek_v4", "o_a_proj"),
    ],
)
def test_layers_beside_which_an_update_would_be_lost_are_left_out_and_refused_by_name(name: str, lost: str) -> None:
    built = LoRA(rank=2).build(model=families.build(name), seed=0)
    assert built.state()
    assert not any(within(path, each) for path in built.state() for each in lost.split(","))
    tokens = torch.arange(3, 27).view(2, 12)
    built.model(tokens).logits.sum().backward()  # a router in a layer's place would fail here
    for each in lost.split(","):
        for config in (LoRA(rank=2, target_modules=each), BOFT(block_size=2, target_modules=each)):
            with pytest.raises(GymError, match="an update beside it would be lost") as caught:
                config.build(model=families.build(name), seed=0)
            assert caught.value.problems[0].key == "adapter.target_modules"


class Beside(nn.Module):
    """Computes with the weights of some of its layers, and calls the others."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("handed", "kernel", "filled", "marked", "asked", "told"):
            self.add_module(name, nn.Linear(2, 2))
        nn.init.normal_(self.filled.weight)
        self.told.weight = nn.Parameter(torch.ones(2, 2))
        if not getattr(self.marked.weight, "done", False):
            self.marked.weight.done = True

    def get_encoder(self, modality: str) -> nn.Module:
        """Return itself, as models without other senses do."""
        return self

    def forward(self, given: Tensor) -> Tensor:
        """Return what only its source says: `self.told.weight` is named here, and is not computed with."""
        same = isinstance(  # its argument stands in a line of its own
            self.asked.weight, nn.Parameter
        )
        given = given.to(self.asked.weight.dtype) if same else given
        given = functional.linear(given, self.handed.weight)
        return self.told(given) if given.device.type == "cpu" else given @ self.kernel.weight


def test_what_a_module_does_with_a_weight_is_read_from_all_of_its_branches() -> None:
    assert set(unfit_layers(cast(Any, Beside()))) == {"handed", "kernel"}


def test_a_linear_layer_with_a_forward_pass_of_its_own_is_one() -> None:
    assert "dense" in {path.rpartition(".")[2] for path in adapted(LoRA(rank=2), families.build("falcon"))}


def test_the_layers_of_gpt2_are_taken_by_lora_and_refused_by_name_elsewhere() -> None:
    tokens = torch.tensor([[5, 9, 7, 5]])
    for config in (LoRA(rank=2), LoRA(rank=2, target_modules="c_attn"), RsLoRA(rank=2), DoRA(rank=2), LongLoRA(rank=2)):
        model = config.build(model=family("gpt2"), seed=0)
        with torch.no_grad():
            for weight in model.state().values():
                weight.add_(0.1)
            torch.testing.assert_close(model.merged()(tokens).logits, model.model(tokens).logits, atol=1e-4, rtol=1e-4)
        kinds = {"c_attn", "c_proj", "c_fc"} if config.target_modules == "all" else {"c_attn"}
        assert {name.split(".")[-3] for name in model.state() if "lora_A" in name} == kinds
    for config in (PiSSA(rank=2), LoftQ(rank=2), EVA(rank=2), LoHa(rank=2), OFT(block_size=8), BOFT(block_size=8)):
        with pytest.raises(GymError, match="has no layers that this adapter can change"):
            config.build(model=family("gpt2"), seed=0)


@pytest.mark.parametrize("empty", [(), [], "", " , "])
def test_no_name_at_all_is_refused_before_a_model_is_loaded(empty: Any) -> None:
    for config in (LoRA, DoRA, OFT, BOFT, IA3, LNTuning, VeRA, LoHa, EVA, LongLoRA):
        with pytest.raises(ValidationError, match="no module is named"):
            config(target_modules=empty)
    with pytest.raises(ValidationError, match="no module is named"):
        Freeze(trainable_modules=empty)
    with pytest.raises(ValidationError, match="no module is named"):
        ExpertLoRA(target_parameters=empty)
    assert not ExpertLoRA(target_modules=()).target_modules, "experts alone"
