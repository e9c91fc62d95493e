"""Adapters over a base whose vocabulary was resized: embeddings and head train whole beside them, and lie in their folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from adapters_bench import ADAPTERS, TOKENS, Bench
from click.testing import CliRunner
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from test_resumed_runs import crashed_after_three_steps
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from gym_adapters import LoRA
from gym_adapters.config.base import PeftOptions
from gym_adapters.tokens_command import tokens as command
from gym_core import Artifact, GymError, execute, load_recipe
from gym_core.loading import find, load
from gym_plan.plan import plan
from gym_testkit.bench import Bench as Runs
from gym_torch.checkpoints.base_fingerprint import check_base
from gym_torch.checkpoints.open_artifact import open_artifact, plain_model
from gym_torch.checkpoints.peft_folder import peft_artifact
from gym_torch.model.adapted import assembled
from gym_torch.model.vocabulary import vocabulary_modules

NEW = [f"<new {number}>" for number in range(8)]
ENDS = ("embed_tokens", "lm_head")
HOLDING = [name for name in ADAPTERS if issubclass(load(find("adapters", name)), PeftOptions)]
TEXT = torch.cat([TOKENS, torch.tensor([[58, 3, 9]])], dim=1)  #: what a smaller vocabulary has too


def resized(bench: Bench, rows: int) -> PreTrainedModel:
    model = bench.base()
    model.resize_token_embeddings(rows)
    return model


@torch.no_grad()
def logits(model: torch.nn.Module, text: torch.Tensor) -> torch.Tensor:
    return model.eval()(text).logits.float()


def merged(artifact: Artifact, bench: Bench) -> PreTrainedModel:
    """Return what exporters write of it."""
    return assembled(plain_model(artifact), type(bench.base()))


@pytest.mark.parametrize("name", [name for name in HOLDING if name != "expert_lora"])
def test_each_that_holds_modules_holds_new_rows(bench: Bench, tmp_path: Path, name: str) -> None:
    config = load(find("adapters", name))(**{**ADAPTERS[name], "modules_to_save": ENDS})
    adapted = config.build(model=resized(bench, 64), seed=0)
    adapted.initialize(bench.first(adapted.model))
    assert all(adapted.holds(module) for module in vocabulary_modules(adapted.model).values())
    text = torch.cat([TEXT, torch.tensor([[60, 63]])], dim=1)
    optimizer = torch.optim.AdamW([weight for weight in adapted.model.parameters() if weight.requires_grad], lr=0.02)
    for _ in range(3):
        optimizer.zero_grad()
        adapted.model(text, labels=text).loss.backward()
        optimizer.step()
    wanted = logits(adapted.model, text)  # without dropout
    artifact = adapted.save(tmp_path / "adapter", str(bench.path))
    assert torch.equal(logits(open_artifact(artifact).model, text), wanted)
    torch.testing.assert_close(logits(merged(artifact, bench), text), wanted, atol=1e-4, rtol=1e-4)
    if name != "loftq":  # which rounded its base
        theirs = PeftModel.from_pretrained(resized(bench, 64), str(tmp_path / "adapter"))
        torch.testing.assert_close(logits(theirs, text), wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("rows", [64, 59], ids=["more", "fewer"])
@pytest.mark.parametrize(
    "options",
    [
        {"modules_to_save": ["embed_tokens", "lm_head"]},
        {"modules_to_save": ["embed_tokens"]},
        {"modules_to_save": ["lm_head", "norm"]},
        {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
        {"use_dora": True},
        {},
    ],
    ids=["both", "embeddings", "head", "tied", "dora", "neither"],
)
def test_what_peft_left_over_another_vocabulary_is_read(
    bench: Bench, tmp_path: Path, options: dict[str, Any], rows: int
) -> None:
    """It writes embeddings and head whether they trained or not, some of them three times."""
    theirs = get_peft_model(
        resized(bench, rows), LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM", **options)
    )
    for weight in theirs.parameters():
        weight.data += 0.1 * torch.randn_like(weight) * weight.requires_grad
    theirs.save_pretrained(str(tmp_path / "adapter"))
    artifact = peft_artifact(tmp_path / "adapter", str(bench.path))
    wanted = logits(theirs, TEXT)
    for model in (open_artifact(artifact).model, merged(artifact, bench)):
        assert model.config.vocab_size == rows == wanted.shape[-1]
        torch.testing.assert_close(logits(model, TEXT), wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("whole", [ENDS, ("norm",)], ids=["vocabulary", "norm"])
def test_modules_that_trained_whole_are_opened_in_the_precision_of_the_base(
    bench: Bench, tmp_path: Path, whole: tuple[str, ...]
) -> None:
    """They train in fp32, under autocast; without it the layers behind them would not take what they compute."""
    base = bench.base().bfloat16()
    base.save_pretrained(tmp_path / "base")
    adapted = LoRA(rank=2, modules_to_save=whole).build(model=base, seed=0)
    artifact = adapted.save(tmp_path / "adapter", str(tmp_path / "base"))
    opened = open_artifact(artifact, "auto")
    wanted = logits(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), TEXT)
    assert torch.equal(logits(opened.model, TEXT), wanted) and wanted.isfinite().all()


@pytest.mark.parametrize("kept", ENDS)
def test_a_folder_with_new_rows_of_one_end_alone_is_refused(bench: Bench, tmp_path: Path, kept: str) -> None:
    theirs = get_peft_model(
        resized(bench, 64),
        LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=list(ENDS), task_type="CAUSAL_LM"),
    )
    theirs.save_pretrained(str(tmp_path / "adapter"))
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    save_file({name: each for name, each in load_file(file).items() if "_proj" in name or kept in name}, file)
    with pytest.raises(
        GymError, match=r"its base has 60 tokens, and it holds rows for others in one place alone"
    ) as caught:
        open_artifact(peft_artifact(tmp_path / "adapter", str(bench.path)))
    assert "modules_to_save: embed_tokens,lm_head" in caught.value.problems[0].fix


def larger(runs: Runs, tmp_path: Path, by: str = "folder") -> dict[str, Any]:
    """Return a recipe over a tokenizer with more tokens than the model has rows for: in a folder of its own, or by options."""
    into = tmp_path / "larger"
    if by == "folder":
        done = CliRunner().invoke(command, [str(runs.model()), *NEW, "--into", str(into)])
        assert done.exit_code == 0, done.output
        model = {"path": str(into), "resize_vocab": True}
    else:
        model = {"path": str(runs.model()), "add_tokens": NEW[:3], "add_special_tokens": NEW[3:]}
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": f"{NEW[-2]} b {NEW[-1]}"}]
    recipe = runs.recipe("sft", save_every=3, max_steps=6, learning_rate=0.01)
    return recipe | {
        "model": model,
        "data": str(runs.file([{"messages": messages}] * 4)),
        "output": str(tmp_path / "run"),
    }


@pytest.mark.parametrize("by", ["folder", "options"])
def test_a_run_trains_new_tokens_beside_lora_and_goes_on_to_the_same_bits(tmp_path: Path, by: str) -> None:
    runs = Runs(tmp_path)
    recipe = larger(runs, tmp_path, by) | {"adapter": {"name": "lora", "rank": 2}, "export": [{"name": "safetensors"}]}
    planned = plan(load_recipe(recipe))
    outcome = execute(load_recipe(recipe))
    output = tmp_path / "run"
    state = json.loads((output / "checkpoints" / "step-00000003" / "state.json").read_text())
    assert planned.trainable == sum(torch.Size(shape).numel() for shape in state["shapes"].values())
    whole = load_file(output / "model" / "adapter_model.safetensors")
    crashed_after_three_steps(output)
    execute(load_recipe(recipe))
    again = load_file(output / "model" / "adapter_model.safetensors")
    assert again.keys() == whole.keys() and all(torch.equal(again[name], each) for name, each in whole.items())

    base = AutoModelForCausalLM.from_pretrained(runs.model())
    tokenizer, rows = AutoTokenizer.from_pretrained(output / "model"), base.config.vocab_size
    text = tokenizer(f"a{NEW[-2]} b {NEW[-1]}", return_tensors="pt", add_special_tokens=False).input_ids
    assert {*tokenizer.convert_tokens_to_ids(NEW[-2:])} < {*text[0].tolist()} and int(text.max()) >= rows
    wanted = logits(open_artifact(outcome.artifact).model, text)
    base.resize_token_embeddings(len(whole["base_model.model.lm_head.weight"]))
    base.save_pretrained(tmp_path / "resized")
    check_base(outcome.artifact, runs.model())
    with pytest.raises(GymError, match="belongs to another base"):
        check_base(outcome.artifact, tmp_path / "resized")
    theirs = PeftModel.from_pretrained(base, str(output / "model"))
    torch.testing.assert_close(logits(theirs, text), wanted, atol=1e-4, rtol=1e-4)
    exported = AutoModelForCausalLM.from_pretrained(outcome.exports[0])
    torch.testing.assert_close(logits(exported, text), wanted, atol=1e-4, rtol=1e-4)
    assert {*AutoTokenizer.from_pretrained(outcome.exports[0]).get_added_vocab()} >= {*NEW}


@pytest.mark.parametrize(
    "adapter",
    [
        {"name": "lora", "modules_to_save": "norm"},
        {"name": "lora", "modules_to_save": "lm_head"},
        {"name": "prompt_tuning"},
        {"name": "boft", "block_size": 4},
        {"name": "trainable_tokens", "tokens": [NEW[-1]]},
    ],
    ids=lambda adapter: "-".join(map(str, adapter.values())),
)
def test_an_adapter_without_room_for_new_rows_is_refused_by_name(tmp_path: Path, adapter: dict[str, Any]) -> None:
    recipe = larger(Runs(tmp_path), tmp_path) | {"adapter": adapter}
    with pytest.raises(GymError, match=r"does not hold the embeddings that are added.*: model\.embed_tokens") as caught:
        execute(load_recipe(recipe))
    assert caught.value.problems[0].key == "model.resize_vocab"
    assert "modules_to_save: embed_tokens,lm_head" in caught.value.problems[0].fix


def test_modules_that_are_named_are_trained_and_no_others(bench: Bench) -> None:
    assert LoRA(modules_to_save="norm").with_modules(ENDS) == LoRA(modules_to_save="norm")
    assert LoRA().with_modules(ENDS) == LoRA(modules_to_save=ENDS)


@pytest.mark.parametrize("by", ["gym", "peft"])
def test_one_with_modules_that_trained_whole_goes_on(bench: Bench, tmp_path: Path, by: str) -> None:
    """peft writes them two times and what they stand for, and another base has other new rows: none of it counts."""
    options: dict[str, Any] = {"target_modules": ["q_proj"], "modules_to_save": list(ENDS)}
    model = resized(bench, 64)
    if by == "gym":
        theirs: Any = LoRA(rank=2, alpha=4.0, **options).build(model=model, seed=0)
    else:
        theirs = get_peft_model(model, LoraConfig(r=2, lora_alpha=4, task_type="CAUSAL_LM", **options))
    bench.train(model)
    folder = tmp_path / "first"
    theirs.save(folder, str(bench.path)) if by == "gym" else theirs.save_pretrained(str(folder))
    began = logits(model, TEXT)
    config = LoRA(
        rank=2, alpha=4.0, target_modules="q_proj", modules_to_save=(*ENDS, "norm"), adapter_name_or_path=str(folder)
    )
    adapted = config.build(model=resized(bench, 64), seed=1)
    torch.testing.assert_close(logits(adapted.model, TEXT), began)
    bench.train(adapted.model)
    assert not torch.allclose(logits(adapted.model, TEXT), began, atol=1e-2)
    with adapted.disable_adapter():  # before it was trained, it was there already
        torch.testing.assert_close(logits(adapted.model, TEXT), began)
    wanted = logits(adapted.model, TEXT)
    artifact = adapted.save(tmp_path / "second", str(bench.path))
    loaded = PeftModel.from_pretrained(resized(bench, 64), str(tmp_path / "second"))
    for found in (open_artifact(artifact).model, merged(artifact, bench), loaded):
        torch.testing.assert_close(logits(found, TEXT), wanted, atol=1e-4, rtol=1e-4)
    again = config.build(model=resized(bench, 64), seed=2)
    again.load(again.read(tmp_path / "second"))
    assert torch.equal(logits(again.model, TEXT), wanted)
    with again.disable_adapter():
        torch.testing.assert_close(logits(again.model, TEXT), began)

    for changed, rows, why in (
        (
            {"modules_to_save": "norm"},
            64,
            r"has trained (model\.embed_tokens|lm_head) whole[^\n]*\n.*embed_tokens,lm_head",
        ),
        ({}, 60, r"embed_tokens\.weight is \[64, 16\] in it, and \[60, 16\] for this model\n.*model\.resize_vocab"),
        ({"create_new_adapter": True}, 64, r"only a plain LoRA .* has modules_to_save"),
    ):
        with pytest.raises(GymError, match=why):
            config.model_copy(update=changed).build(model=resized(bench, rows), seed=0)
