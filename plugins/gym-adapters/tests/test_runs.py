"""Adapters in recipes and runs: other optimizers, plans, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from gym_adapters import LoRA
from gym_core import GymError, RecipeError, execute, load_recipe
from gym_manage.explain import explain
from gym_plan.plan import plan
from gym_testkit.bench import Bench
from gym_torch.distributed.strategies import DDP, FSDP
from gym_torch.loop.checks import check_gradients_stay

KINDS = ("rslora", "dora", "pissa", "olora", "lora_ga", "eva", "loftq", "adalora")


@pytest.fixture
def small(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_lora_plus_goes_with_any_of_them(small: Bench) -> None:
    for kind in ("dora", "pissa", "adalora"):
        run = {"adapter": {"name": kind, "rank": 4} | ({"target_rank": 2} if kind == "adalora" else {})}
        optimizer = {"name": "lora_plus", "lr_ratio": 4.0}
        recipe = small.recipe("sft", max_steps=4, batch_size=16, learning_rate=2e-3) | run | {"optimizer": optimizer}
        losses = small.run(recipe, kind).series("loss")
        assert losses[-1] < losses[0]


def test_adalora_has_its_ranks_at_the_end_of_a_run(small: Bench) -> None:
    adapter = {"name": "adalora", "rank": 4, "target_rank": 2}
    output = small.run(small.recipe("sft", max_steps=10) | {"adapter": adapter}).outcome.output
    state = load_file(output / "model" / "adalora.safetensors")
    left = [int((tensor != 0).sum()) for name, tensor in state.items() if "lora_E" in name and "mask" not in name]
    assert sum(left) == 2 * len(left)
    written = json.loads((output / "model" / "adapter_config.json").read_text())
    assert sum(map(sum, written["rank_pattern"].values())) == 2 * len(left)


@pytest.mark.proves("adalora")
@pytest.mark.parametrize("optimizer", ["lomo", "lisa"])
def test_adalora_needs_the_gradients(small: Bench, optimizer: str) -> None:
    recipe = small.recipe("sft", max_grad_norm=0.0) | {"adapter": {"name": "adalora"}, "optimizer": optimizer}
    with pytest.raises(RecipeError, match="leaves no gradients") as caught:
        small.run(recipe)
    assert caught.value.problems[0].key == "optimizer"


def test_gradients_must_be_whole() -> None:
    with pytest.raises(RecipeError, match="a part of the gradients") as caught:
        check_gradients_stay(let_go=False, cut=FSDP().shards())
    assert caught.value.problems[0].key == "distributed"
    check_gradients_stay(let_go=False, cut=DDP().shards())


@pytest.mark.parametrize("kind", ["lora", *KINDS])
def test_a_plan_says_what_is_adapted(small: Bench, kind: str, tmp_path: Path) -> None:
    recipe = small.recipe("sft") | {"adapter": {"name": kind, "rank": 6 if kind != "adalora" else 10}}
    found = plan(load_recipe(recipe | {"output": str(tmp_path / "x")}))
    assert found.adapter.startswith("rank ") and "alpha" in found.adapter and "q_proj" in found.adapter
    if kind == "pissa":
        plain = plan(load_recipe(recipe | {"adapter": {"name": "lora", "rank": 6}, "output": str(tmp_path / "x")}))
        assert found.trainable == plain.trainable and found.model_bytes == 2 * plain.model_bytes


def test_a_plan_of_many_layers_takes_adapters_of_all_of_them(small: Bench, tmp_path: Path) -> None:
    deep = shutil.copytree(small.model(), tmp_path / "deep")
    shape = json.loads((deep / "config.json").read_text()) | {"num_hidden_layers": 6}
    (deep / "config.json").write_text(json.dumps(shape))
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(deep)).save_pretrained(deep)
    LoRA(rank=4).build(model=AutoModelForCausalLM.from_pretrained(deep), seed=0).save(tmp_path / "first", str(deep))
    adapter = {"name": "lora", "rank": 4}
    recipe = small.recipe("sft") | {"model": str(deep), "output": str(tmp_path / "x")}
    plain = plan(load_recipe(recipe | {"adapter": adapter}))
    found = plan(load_recipe(recipe | {"adapter": adapter | {"adapter_name_or_path": [str(tmp_path / "first")]}}))
    assert found.trainable == plain.trainable


@pytest.mark.proves("full")
@pytest.mark.parametrize("kind", ["full", "lora", "loftq"])
def test_explain_says_how_much_trains(small: Bench, kind: str) -> None:
    path = small.path("recipe.json")
    path.write_text(json.dumps(small.recipe("sft") | {"adapter": kind, "output": str(small.path("x"))}))
    said = CliRunner().invoke(explain, [str(path)]).output
    line = next(line for line in said.splitlines() if line.startswith("# adapter  ") and "train" in line)
    weights = AutoModelForCausalLM.from_pretrained(small.model())
    whole = sum(weight.numel() for weight in weights.parameters())
    if kind == "full":
        assert line == f"# adapter  {whole:,} of {whole:,} parameters train (100.00%)"
    else:
        trained = sum(8 * sum(weight.shape) for name, weight in weights.named_parameters() if "_proj" in name)
        assert line.startswith(
            "# adapter  rank 8, alpha 16: q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj;"
        )
        assert f"; {trained:,} of {whole + trained:,} parameters train" in line


def test_a_run_goes_on_with_the_adapter_of_another_and_with_no_other(small: Bench) -> None:
    adapter = {"name": "lora", "rank": 4}
    first = small.run(small.recipe("sft", max_steps=1) | {"adapter": adapter}, "first").outcome.output
    adapter |= {"adapter_name_or_path": str(first)}
    recipe = small.recipe("sft", max_steps=1, save_every=1) | {"adapter": adapter}
    second = small.run(recipe, "second").outcome.output
    told = json.loads((second / "run.json").read_text())["recipe"]["adapter"]
    assert told["adapter_name_or_path"] == str(first / "model")
    weights = first / "model" / "adapter_model.safetensors"
    save_file({name: tensor + 1 for name, tensor in load_file(weights).items()}, weights)
    with pytest.raises(GymError, match=r"the adapter .*first/model was .* and is"):
        execute(load_recipe(recipe | {"train": recipe["train"] | {"max_steps": 2}, "output": str(second)}))
    whole = small.run(small.recipe("sft", max_steps=1) | {"adapter": "full"}, "whole").outcome.output
    with pytest.raises(GymError, match="holds a model, not an adapter"):
        small.run(recipe | {"adapter": {**adapter, "adapter_name_or_path": str(whole)}}, "third")
