"""Roles of parameters, and blocks by name."""

from __future__ import annotations

import pytest
import torch
from optim_bench import tiny
from peft import IA3Config, LoraConfig, OFTConfig, TrainableTokensConfig, inject_adapter_in_model
from torch import nn
from transformers import AutoModelForCausalLM, MambaConfig, MambaForCausalLM

from gym_optim import parameter_groups
from gym_optim.parameter_roles import block_of, is_matrix, is_named
from gym_testkit import families


def roles(groups: list[dict[str, object]]) -> dict[str, set[str]]:
    return {str(group["role"]): {name for name, _ in group["params"]} for group in groups}  # type: ignore[attr-defined]


def test_every_parameter_of_a_model_has_one_role() -> None:
    model = tiny()
    groups = parameter_groups(model, head=model.get_output_embeddings(), head_dim=8)
    found = roles(groups)
    assert found["embedding"] == {"model.embed_tokens.weight"}, "tied to the head, so it comes once"
    assert {name.split(".")[-2] for name in found["query_key"]} == {"q_proj", "k_proj"}
    assert {name.split(".")[-2] for name in found["matrix"]} == {
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    }
    assert all("norm" in name for name in found["vector"])
    assert sorted(name for group in found.values() for name in group) == sorted(dict(model.named_parameters()))
    options = {group["role"]: group for group in groups}
    assert options["query_key"]["head_dim"] == 8 and options["vector"]["weight_decay"] == 0.0


def test_a_head_of_its_own_is_told_by_the_model() -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(9, 4), "proj": nn.Linear(4, 4), "head": nn.Linear(4, 9)})
    model["proj"].bias.requires_grad_(False)
    found = roles(parameter_groups(model, head=model["head"]))
    assert found == {
        "embedding": {"embed.weight"},
        "head": {"head.weight"},
        "matrix": {"proj.weight"},
        "vector": {"head.bias"},
    }
    assert "head.weight" in roles(parameter_groups(model))["matrix"]


def test_a_lora_pair_is_two_matrices() -> None:
    model = inject_adapter_in_model(LoraConfig(target_modules=["q_proj"]), tiny())
    found = roles(parameter_groups(model, head_dim=8))
    assert set(found) == {"matrix"} and len(found["matrix"]) == 4


def test_what_is_beside_a_table_of_tokens_is_one_itself() -> None:
    """Muon or GaLore of the adapter of an embedding would mix tokens, most of which a step has not seen."""
    modules = ["embed_tokens", "q_proj"]
    model = inject_adapter_in_model(LoraConfig(target_modules=modules), tiny())
    found = roles(parameter_groups(model, head_dim=8))
    assert {name.split(".")[-2] for name in found["embedding"]} == {"lora_embedding_A", "lora_embedding_B"}
    assert all("q_proj" in name for name in found["matrix"]) and len(found["matrix"]) == 4
    tokens = TrainableTokensConfig(target_modules=["embed_tokens"], token_indices=[1, 2])
    assert set(roles(parameter_groups(inject_adapter_in_model(tokens, tiny())))) == {"embedding"}


def test_lora_pairs_come_with_what_their_layer_multiplies_them_by() -> None:
    options = LoraConfig(r=4, lora_alpha=4, target_modules=["q_proj", "o_proj"], rank_pattern={"o_proj": 2})
    groups = parameter_groups(inject_adapter_in_model(options, tiny()))
    found = {group["scaling"]: {name.split(".")[4] for name, _ in group["params"]} for group in groups}
    assert found == {1.0: {"q_proj"}, 2.0: {"o_proj"}}
    assert all("scaling" not in group for group in parameter_groups(tiny()))


def test_a_factor_for_each_unit_is_a_vector() -> None:
    model = inject_adapter_in_model(
        IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]), tiny()
    )
    assert set(roles(parameter_groups(model, head_dim=8))) == {"vector"}
    rank_one = inject_adapter_in_model(LoraConfig(r=1, target_modules=["q_proj"]), tiny())
    assert set(roles(parameter_groups(rank_one, head_dim=8))) == {"matrix"}


def test_what_has_two_dimensions_and_maps_nothing_is_no_matrix() -> None:
    """Muon would make orthogonal what is a table, and its decay all rates of a state space alike."""
    model, config = tiny(), MambaConfig(vocab_size=9, hidden_size=8, state_size=4, num_hidden_layers=1)
    model.requires_grad_(False).register_parameter("prompt_embeddings", nn.Parameter(torch.ones(4, 16)))
    assert roles(parameter_groups(model)) == {"embedding": {"prompt_embeddings"}}
    found = roles(parameter_groups(MambaForCausalLM(config)))
    assert {"backbone.layers.0.mixer.A_log", "backbone.layers.0.mixer.D"} <= found["vector"]
    assert "backbone.layers.0.mixer.in_proj.weight" in found["matrix"]


@pytest.mark.parametrize(("family", "options"), [("cohere", {"use_qk_norm": True}), ("inkling2_text", {})])
def test_what_multiplies_the_numbers_of_each_head_is_a_vector(family: str, options: dict[str, bool]) -> None:
    """It has two dimensions; Muon would make it orthogonal, and decay would draw it to zero."""
    config = families.build(family).config
    config.update(options)
    model = AutoModelForCausalLM.from_config(config)
    gains = {name for name, _ in model.named_parameters() if "_norm" in name or "l2_clip" in name}
    assert any(model.get_parameter(name).dim() == 2 for name in gains)
    assert gains <= roles(parameter_groups(model))["vector"]


def test_angles_of_rotations_are_no_matrix_but_decay_to_none() -> None:
    """A row of them holds what is above the diagonal of one block: made orthogonal, all blocks would turn alike far."""
    model = inject_adapter_in_model(OFTConfig(oft_block_size=8, target_modules=["q_proj", "o_proj"]), tiny())
    (angles,) = parameter_groups(model, head_dim=8)
    assert angles["role"] == "kernel" and len(angles["params"]) == 4 and "weight_decay" not in angles
    assert not any(is_matrix(angles, tuple(weight.shape)) for _, weight in angles["params"])


def test_blocks_and_modules_are_told_by_name() -> None:
    assert block_of("model.layers.3.mlp.experts.5.w1") == "model.layers.3"
    assert block_of("model.norm.weight") == ""
    assert is_named("layers.0.q_proj.weight", "q_proj,v_proj") and not is_named("layers.0.q_proj2.weight", "q_proj")
    assert is_named("", "all") and not is_named("", ("mlp",)) and is_named("a.mlp.b", ("mlp",))
