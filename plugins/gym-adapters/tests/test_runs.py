"""Adapters in recipes and runs: LLaMA-Factory's keys, other optimizers, plans, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from gym_adapters import DoRA, LongLoRA, LoRA, PiSSA, RsLoRA
from gym_core import GymError, Recipe, RecipeError, load_recipe
from gym_core.cli.recipes import explain
from gym_optim.config import LoRAPlus
from gym_plan.plan import plan
from gym_testkit.bench import Bench
from gym_torch.distributed.ddp import Replicated
from gym_torch.distributed.fsdp import Sharded
from gym_torch.trainer import check_gradients_stay

KINDS = ("rslora", "dora", "pissa", "olora", "lora_ga", "eva", "loftq", "adalora")


@pytest.fixture
def small(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def factory(**keys: Any) -> Recipe:
    """Return the recipe that a file of LLaMA-Factory means."""
    base = {"model_name_or_path": "tiny", "stage": "sft", "finetuning_type": "lora", "dataset": "identity"}
    return load_recipe(base | {"output_dir": "runs/x"} | keys)


@pytest.mark.parametrize(
    ("keys", "adapter"),
    [
        ({}, LoRA()),
        ({"use_rslora": True, "lora_rank": 16, "lora_alpha": 32}, RsLoRA(rank=16, alpha=32.0)),
        ({"use_rslora": False, "use_dora": True, "lora_target": "q_proj,v_proj"}, DoRA(modules="q_proj,v_proj")),
        ({"pissa_init": True, "pissa_iter": -1, "pissa_convert": True}, PiSSA(iterations=-1)),
        ({"pissa_init": True, "additional_target": "embed_tokens"}, PiSSA(extra="embed_tokens")),
        ({"adapter_name_or_path": "a,b", "create_new_adapter": True}, LoRA(adapters="a,b", anew=True)),
        ({"adapter_name_or_path": "saves/one", "use_rslora": True}, RsLoRA(adapters="saves/one")),
        ({"shift_attn": True}, LongLoRA()),
    ],
)
def test_llama_factorys_keys_select_the_component(keys: dict[str, Any], adapter: LoRA) -> None:
    assert factory(**keys).adapter == adapter
    left_out = {key: value for key, value in keys.items() if key != "finetuning_type"}
    assert factory(**left_out).adapter == adapter


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"use_rslora": True, "use_dora": True}, "contradicts `use_dora`"),
        ({"finetuning_type": "full", "use_dora": True}, "contradicts `finetuning_type`"),
        ({"pissa_iter": 4}, "belongs to adapter `pissa`"),
        ({"finetuning_type": "full", "lora_rank": 4}, "belongs to adapter `lora`"),
        ({"use_dora": True, "adapter_name_or_path": "somewhere"}, "belongs to adapter `lora`"),
        ({"pissa_init": True, "pissa_iter": 0}, "at least 1 iteration"),
    ],
)
def test_keys_that_mean_nothing_together_are_errors(keys: dict[str, Any], why: str) -> None:
    with pytest.raises(GymError, match=why):
        factory(**keys)


def test_lora_plus_goes_with_any_of_them(small: Bench) -> None:
    recipe = factory(use_dora=True, loraplus_lr_ratio=8.0)
    assert recipe.optimizer == LoRAPlus(ratio=8.0) and recipe.adapter == DoRA()
    for kind in ("dora", "pissa", "adalora"):
        run = {"adapter": {"name": kind, "rank": 4} | ({"target_rank": 2} if kind == "adalora" else {})}
        optimizer = {"name": "lora_plus", "ratio": 4.0}
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
        check_gradients_stay(let_go=False, cut=Sharded.cuts)
    assert caught.value.problems[0].key == "distributed"
    check_gradients_stay(let_go=False, cut=Replicated.cuts)


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
    found = plan(load_recipe(recipe | {"adapter": adapter | {"adapters": [str(tmp_path / "first")]}}))
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
