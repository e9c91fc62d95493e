"""Files and rows of the second version: other names, defaults, rows and exports."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import AutoTokenizer

from gym_core import RecipeError, execute, load_recipe
from gym_core.sections import Findings
from gym_data.rows import Conversation, Named, Preference
from gym_llamafactory.v1 import exporting
from gym_llamafactory.v1.rows import Rows
from gym_testkit.bench import Bench

LORA = {"name": "lora", "r": 4, "lora_alpha": 8, "lora_dropout": 0.0, "target_modules": "all"}


def part(text: str, kind: str = "text") -> list[dict[str, str]]:
    return [{"type": kind, "value": text}]


@pytest.fixture
def written(bench: Bench) -> dict[str, Any]:
    """A file of two datasets, one of them of other rows, and the keys that name it."""
    row = {"messages": [{"role": "user", "content": part("hello")}, {"role": "assistant", "content": part("yes")}]}
    bench.path("own.jsonl").write_text((json.dumps(row) + "\n") * 6)
    bench.path("theirs.json").write_text(json.dumps([{"instruction": "a", "input": "b", "output": "c"}] * 3))
    entries = {
        "own": {"path": str(bench.root / "own.jsonl"), "source": "local"},
        "theirs": {"path": str(bench.root / "theirs.json"), "source": "local", "converter": "alpaca", "size": 2},
    }
    bench.path("data.yaml").write_text(yaml.safe_dump(entries))
    return {"model": str(bench.model()), "model_class": "llm", "train_dataset": str(bench.root / "data.yaml"),
            "output_dir": str(bench.root / "out"), "cutoff_len": 64, "bf16": False}  # fmt: skip


def test_a_file_trains_with_its_own_defaults(bench: Bench, written: dict[str, Any]) -> None:
    keys = written | {"peft_config": LORA, "max_steps": 2, "micro_batch_size": 2, "sample_backend": "hf"}
    recipe = load_recipe(keys | {"dist_config": {"name": "fsdp2", "dcp_path": None}, "global_batch_size": 4})
    train, optimizer = recipe.train, recipe.optimizer
    assert optimizer is not None and optimizer.model_dump()["weight_decay"] == 0.01
    assert (train.learning_rate, train.precision, train.log_every, train.accumulate) == (1e-4, "fp32", 1, 2)
    assert [type(each).__name__ for each in (recipe.scheduler, recipe.distributed)] == ["Constant", "FSDP"]
    output = execute(recipe).output
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 2 and lines[0]["learning_rate"] == lines[1]["learning_rate"] == 1e-4
    assert (output / "adapter_config.json").is_file() and not list(output.glob("checkpoints/step-1*"))
    report = json.loads((output / "run.json").read_text())["data"]["report"]
    assert report["examples"] == 8


def test_ids_are_those_of_the_template_of_the_model_or_of_the_file(bench: Bench, written: dict[str, Any]) -> None:
    own = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    tokenizer = AutoTokenizer.from_pretrained(bench.model())
    chat = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "yes"}]
    for more, template in (({}, None), ({"custom_chat_template": own}, own)):
        data = load_recipe(written | more).data
        assert data is not None
        found = data.build(tokenizer=bench.model(), rows="conversation", seed=42).train[0]
        text = tokenizer.apply_chat_template(chat, chat_template=template, tokenize=False)
        assert found.tokens.tolist() == tokenizer(text, add_special_tokens=False).input_ids
        assert tokenizer.decode(found.tokens[found.trained]).startswith("yes")


def test_kernels_of_liger_are_tried_where_a_file_names_them(written: dict[str, Any]) -> None:
    found: Any = load_recipe(written | {"kernel_config": {"name": "liger_kernel"}}).model
    assert [type(each).__name__ for each in found.kernels] == ["Liger"]
    assert not load_recipe(written | {"kernel_config": {"name": "auto"}}).model.kernels  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("more", "meant"),
    [
        ({"batching_strategy": "dynamic_batching", "micro_batch_size": 2}, ("train", "batch_tokens", 128)),
        ({"batching_strategy": "dynamic_padding_free"}, ("data", "whole_epochs", False)),
        ({"optim_config": {"name": "muon", "wd": 0.2, "adamw_betas": [0.8, 0.9]}}, ("optimizer", "beta1", 0.8)),
        ({"peft_config": {"name": "freeze", "freeze_trainable_layers": 1}}, ("adapter", "trainable_layers", 1)),
        ({"pref_loss": "simpo", "simpo_gamma": 0.3}, ("algorithm", "simpo_gamma", 0.3)),
        ({"enable_activation_checkpointing": False}, ("train", "gradient_checkpointing", False)),
        ({"cp_size": 2, "cp_mode": "ulysses"}, ("distributed", "context_parallel_size", 2)),
        ({"cp_size": 2, "dist_config": {"name": "fsdp2"}}, ("distributed", "context_parallel_size", 2)),
    ],
    ids=str,
)
def test_sections_of_theirs_are_sections_here(written: dict[str, Any], more: dict[str, Any], meant: Any) -> None:
    section, option, value = meant
    assert getattr(load_recipe(written | more), section).model_dump()[option] == value


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"kernel_config": {"name": "npu_fused_rope"}}, "kernel_config.name"),
        ({"dist_config": {"name": "fsdpturbo", "ep_size": 2}}, "dist_config.name"),
        ({"peft_config": LORA | {"rank": 4}}, "peft_config.rank"),
        ({"train_dataset": "nowhere.yaml"}, "train_dataset"),
        ({"dist_config": {"name": "fsdp2", "cp_size": 2}}, "dist_config.cp_size"),
        ({"micro_batch_size": 0}, "micro_batch_size"),
        ({"lora_rank": 4}, "lora_rank"),
        ({"global_batch_size": 3, "micro_batch_size": 2}, "global_batch_size"),
    ],
    ids=str,
)
def test_what_nobody_does_is_named_as_the_user_wrote_it(
    written: dict[str, Any], more: dict[str, Any], key: str
) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(written | more)
    assert [problem.key for problem in caught.value.problems] == [key]


def test_rows_are_told_by_their_parts() -> None:
    call = {"role": "assistant", "content": part(json.dumps({"name": "f", "arguments": {"x": 1}}), "tool_call")}
    asked, unlearnt = (
        {"role": "user", "content": part("q")},
        {"role": "assistant", "content": part("a"), "loss_weight": 0.0},
    )
    told = Rows().build().convert({"messages": [asked, unlearnt, asked, call]})
    assert isinstance(told, Conversation) and told.muted == {1} and told.messages[3]["tool_calls"]
    sides = {
        name: [asked, {"role": "assistant", "content": part(name)}] for name in ("chosen_messages", "rejected_messages")
    }
    assert isinstance(Rows().build().convert(sides), Preference)
    alpaca = Rows(converter="alpaca").build().convert({"instruction": "a", "input": "b", "output": "c"})
    assert [each["content"] for each in alpaca.messages] == ["ab", "c"], "nothing stands between the two"
    spoken = [{"from": "human", "value": "q"}, {"from": "function_call", "value": '{"name": "f", "arguments": {}}'}]
    assert Rows(converter="sharegpt").build().convert({"conversations": spoken}).messages[1]["tool_calls"]
    pictured = {"role": "user", "content": [*part("x.png", "image_url"), *part("Who?"), *part("y.png", "image_url")]}
    seen = Rows().build().convert({"messages": [pictured, unlearnt]})
    assert (seen.messages[0]["content"], seen.media) == (
        "<image>Who?<image>",
        (Named("image", "x.png"), Named("image", "y.png")),
    )
    for wrong, why in (
        ({"messages": [asked, {"role": "assistant", "content": part("x.png", "image_url")}]}, "holds images"),
        ({"messages": [{"role": "user", "content": part("x.mp4", "video_url")}, unlearnt]}, "audio and video"),
        ({"messages": [asked, {"role": "assistant", "content": part("x"), "loss_weight": 0.5}]}, "loss_weight is 0.5"),
    ):
        with pytest.raises(ValueError, match=why):
            Rows().build().convert(wrong)


NO_TEXT: tuple[Any, ...] = (None, 5, "x", [], {}, [None], ["x"], [{}], [[]])


@pytest.mark.parametrize("odd", NO_TEXT, ids=str)
def test_whatever_a_row_holds_it_is_read_or_a_bad_row(odd: Any) -> None:
    parts = [part(odd), part(odd, "tool_call"), [{"type": odd, "value": "x"}], [{"type": "text"}], odd]
    answers = [{"role": "assistant", "content": content} for content in parts]
    rows = [{"messages": [{"role": "user", "content": "q"}, answer]} for answer in answers]
    rows += [{"messages": odd}, {"chosen_messages": odd}, {"instruction": odd, "output": odd}, {"chosen": odd}]
    rows += [
        {"conversations": odd},
        {"conversations": [{"from": odd, "value": odd}, {"from": "function_call", "value": odd}]},
    ]
    for converter in (None, "alpaca", "sharegpt", "pair"):
        for row in rows:
            with contextlib.suppress(ValueError):
                Rows(converter=converter).build().convert(row)


def test_an_export_is_told_by_the_section_of_the_adapter(tmp_path: Path) -> None:
    section = {"name": "lora", "adapter_name_or_path": "./adapter", "export_dir": str(tmp_path), "infer_dtype": "auto"}
    found = Findings()
    told = exporting.translate({"model": "tiny", "peft_config": section}, found)
    assert not found.problems and (told["model"], told["adapter"], told["into"]) == ("tiny", "./adapter", str(tmp_path))
    exporting.translate({"model": "tiny", "peft_config": section | {"name": "freeze", "colour": 1}}, found)
    assert {problem.key for problem in found.problems} == {"peft_config.name", "colour"}


def test_evaluation_and_checkpoints_of_an_epoch(written: dict[str, Any]) -> None:
    recipe = load_recipe(written | {"eval_dataset": written["train_dataset"], "save_epochs": 1, "num_train_epochs": 4})
    assert recipe.train.save_every == 0.25 and len(recipe.data.validation_sources) == 2  # type: ignore[union-attr]
    assert load_recipe(written | {"save_epochs": 1, "num_train_epochs": 1}).train.save_every >= 1_000_000
    for more, key in (
        ({"eval_dataset": "nowhere.yaml"}, "eval_dataset"),
        ({"save_epochs": 1, "max_steps": 9}, "save_epochs"),
    ):
        with pytest.raises(RecipeError) as caught:
            load_recipe(written | more)
        assert key in [problem.key for problem in caught.value.problems]
