"""The engine in the training process, with a stand-in for vLLM's `LLM`: order of sleeping, waking and handing weights over."""

from __future__ import annotations

import sys
from types import ModuleType

import gym_vllm_standin
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from gym_core import GymError
from gym_data.tokenizer import Tokenizer
from gym_rl.rollout_engine import RolloutRequest
from gym_testkit.distribution import Brought
from gym_testkit.laws import rollouts as laws
from gym_torch.model.adapted import Full
from gym_vllm import Colocated
from gym_vllm.colocated import checkpoint_weights

LAWS = [law.check for law in laws.laws.laws]


@pytest.fixture
def vllm(monkeypatch) -> None:
    """Have `import vllm` find the stand-in."""
    module = ModuleType("vllm")
    module.LLM, module.SamplingParams = gym_vllm_standin.LLM, gym_vllm_standin.SamplingParams
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "")


def build(path, **options):
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    return Colocated(**options).build(adapted=Full(None, model), tokenizer=Tokenizer(path), path=path)


@pytest.mark.parametrize("law", LAWS, ids=[law.__name__ for law in LAWS])
@pytest.mark.parametrize("sleeping", [True, False], ids=["sleeping", "awake"])
def test_it_holds_to_the_laws_of_engines(bench, vllm, law, sleeping) -> None:
    class Engine(Colocated):
        enable_sleep_mode: bool = sleeping

    law(Brought("rollouts", "vllm-colocated", Engine), bench)


def test_it_sleeps_while_the_policy_trains(vllm, model_path) -> None:
    engine = build(model_path, gpu_memory_utilization=0.4, max_model_len=128)
    options = engine.llm.options
    assert options["gpu_memory_utilization"] == 0.4 and options["max_model_len"] == 128
    assert options["logprobs_mode"] == "processed_logprobs"
    assert engine.llm.held == set()
    for _ in range(2):
        engine.refresh()
        engine.generate(RolloutRequest([[5]], 2, 1.0))
        assert engine.llm.held == set()
    engine.generate(RolloutRequest([[5]], 2, 1.0))  # its weights went when it fell asleep: they are handed over again
    assert engine.llm.calls == ["reload_weights", "reset_prefix_cache"] * 3


def test_awake_it_takes_weights_only_when_they_have_changed(vllm, model_path) -> None:
    engine = build(model_path, enable_sleep_mode=False)
    for _ in range(2):
        engine.refresh()
        engine.generate(RolloutRequest([[5]], 2, 1.0))
        engine.generate(RolloutRequest([[5]], 2, 1.0))
    assert engine.llm.calls == ["reload_weights", "reset_prefix_cache"] * 2


def test_a_second_engine_finds_the_group_that_the_first_began_and_processes_that_train_are_refused(
    vllm, model_path, monkeypatch
) -> None:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        build(model_path)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
        with pytest.raises(GymError, match="for one process alone"):
            build(model_path)
    finally:
        torch.distributed.destroy_process_group()


def test_weights_that_do_not_arrive_are_noticed(vllm, model_path) -> None:
    engine = build(model_path, enable_sleep_mode=False)
    engine.llm.model.load = lambda weights: None
    engine.generate(RolloutRequest([[5]], 2, 1.0))
    with torch.no_grad():
        for weight in engine.adapted.model.parameters():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)), alpha=0.3)
    engine.refresh()
    with pytest.raises(GymError, match="computes with other weights than it was just given"):
        engine.generate(RolloutRequest([[5]], 2, 1.0))


def test_without_vllm(model_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "")
    with pytest.raises(GymError, match="pip install 'gym-vllm"):
        build(model_path)


def test_weights_have_the_names_and_values_of_a_checkpoint(model_path, tmp_path) -> None:
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "vocab_size": 20, "head_dim": 8}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
    torch.manual_seed(0)
    mixture = Qwen3MoeForCausalLM(Qwen3MoeConfig(**shape, **heads, **experts))
    for name, model in {"mixture": mixture, "tied": AutoModelForCausalLM.from_pretrained(model_path)}.items():
        model.save_pretrained(tmp_path / name)
        saved = load_file(tmp_path / name / "model.safetensors")
        found = dict(checkpoint_weights(model))
        assert found.keys() == saved.keys()
        assert all(torch.equal(found[key], saved[key]) for key in saved)


@pytest.mark.gpu
def test_it_answers_with_vllm_itself(bench, monkeypatch) -> None:
    """Every law, on a GPU with vLLM. Not run yet anywhere."""
    pytest.importorskip("vllm")

    class Engine(Colocated):
        gpu_memory_utilization: float = 0.2
        max_model_len: int | None = 128
        dtype: str = "float32"

    for law in LAWS:
        law(Brought("rollouts", "vllm-colocated", Engine), bench)
