"""Files that train: their data, their outputs, and LLaMA-Factory's functions."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from gym import hparams, train
from gym_core import PluginError, RecipeError, Train, execute, load_recipe
from gym_core.cli import cli
from gym_core.train import Scaling
from gym_data import Data, DatasetConfig
from gym_llamafactory.keys.model import missing
from gym_preference import KTO, RewardModel
from gym_sft import SFT, Pretrain
from gym_testkit.bench import Bench
from gym_torch.observer import steps_of

PAIR = {"prompt": "a", "chosen": "good", "rejected": "bad"}


def trained(file: Path, keys: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a file and return what it logged."""
    file.write_text(yaml.safe_dump(keys))
    output = execute(load_recipe(file)).output
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def test_kto(bench: Bench) -> None:
    rows = bench.data("feedback")
    columns = {"messages": "messages", "kto_tag": "label"}
    tags = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}
    info = {"judged": {"file_name": rows.name, "formatting": "sharegpt", "columns": columns, "tags": tags}}
    (rows.parent / "dataset_info.json").write_text(json.dumps(info))
    keys = {
        "model_name_or_path": str(bench.model()), "stage": "kto", "do_train": True, "finetuning_type": "lora",
        "lora_rank": 4, "lora_target": "all", "pref_beta": 0.2, "kto_chosen_weight": 1.2, "kto_rejected_weight": 0.9,
        "pref_ftx": 0.1, "dataset": "judged", "dataset_dir": str(rows.parent), "cutoff_len": 64,
        "output_dir": str(bench.path("run")), "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2,
        "learning_rate": 1.0e-3, "num_train_epochs": 1.0, "logging_steps": 1,
    }  # fmt: skip
    config = load_recipe(keys).algorithm
    assert isinstance(config, KTO)
    assert (config.beta, config.desirable_weight, config.undesirable_weight, config.ftx) == (0.2, 1.2, 0.9, 0.1)
    lines = trained(bench.path("kto.yaml"), keys)
    assert len(lines) == 2 and all(math.isfinite(line["loss"]) for line in lines)


def test_rm(bench: Bench) -> None:
    keys = {
        "model_name_or_path": str(bench.model()), "stage": "rm", "do_train": True, "finetuning_type": "lora",
        "dataset": "pairs", "dataset_dir": str(bench.root), "output_dir": str(bench.path("saves")),
        "per_device_train_batch_size": 2, "max_steps": 2,
    }  # fmt: skip
    bench.path("pairs.json").write_text(json.dumps([PAIR] * 4))
    entry = {"file_name": "pairs.json", "ranking": True, "columns": {"prompt": "prompt", "chosen": "chosen"}}
    bench.path("dataset_info.json").write_text(json.dumps({"pairs": entry}))
    assert isinstance(load_recipe(keys).algorithm, RewardModel)
    trained(bench.path("rm.yaml"), keys)
    assert (bench.root / "saves" / "model" / "value_head.safetensors").is_file()


def test_sft_and_pt(bench: Bench) -> None:
    keys = {
        "model_name_or_path": str(bench.model()), "dataset": str(bench.data("conversation")),
        "output_dir": str(bench.path("out")), "lr_scheduler_type": "cosine", "adam_beta2": 0.95, "learning_rate": "1e-4",
        "do_train": True, "finetuning_type": "full",
    }  # fmt: skip
    recipe = load_recipe({**keys, "stage": "sft"})
    assert isinstance(recipe.algorithm, SFT) and isinstance(load_recipe({**keys, "stage": "pt"}).algorithm, Pretrain)
    names = {item.path[0]: item.name for item in recipe.resolved}
    assert (names["optimizer"], names["scheduler"]) == ("adamw", "cosine")
    assert recipe.optimizer is not None and recipe.optimizer.model_dump()["beta2"] == 0.95


def test_keys_of_the_data(bench: Bench) -> None:
    info = {name: {"file_name": f"{name}.json"} for name in "ab"}
    bench.path("dataset_info.json").write_text(json.dumps(info))
    for name in "ab":
        rows = [{"instruction": f"{name} {number}", "input": "", "output": "x"} for number in range(4)]
        bench.path(f"{name}.json").write_text(json.dumps(rows))
    keys = {
        "model_name_or_path": str(bench.model()), "stage": "sft", "do_train": True, "dataset": "a,b", "template": "chatml",
        "dataset_dir": str(bench.root), "cutoff_len": 64, "max_samples": 3, "val_size": 0.3, "mask_history": True,
        "train_on_prompt": False, "mix_strategy": "interleave_under", "interleave_probs": "0.5,0.5",
    }  # fmt: skip
    file = bench.path("file.yaml")
    file.write_text(json.dumps(keys))
    done = CliRunner().invoke(cli, ["data", "preview", str(file), "--json"], catch_exceptions=False)
    report = json.loads(done.stdout)["report"]
    assert [source["name"] for source in report["sources"]] == ["a", "b"]
    assert report["rows"] == 6 and report["validation"] >= 1
    file.write_text(
        json.dumps(keys | {"dataset": "a", "val_size": None, "eval_dataset": "b", "interleave_probs": None})
    )
    done = CliRunner().invoke(cli, ["data", "preview", str(file), "--json"], catch_exceptions=False)
    report = json.loads(done.stdout)["report"]
    assert (report["examples"], report["validation"]) == (3, 3)
    with pytest.raises(RecipeError, match="exclude each other"):
        load_recipe(keys | {"eval_dataset": "b"})


def test_its_functions(bench: Bench) -> None:
    keys = {
        "model_name_or_path": str(bench.model()), "stage": "sft", "dataset": str(bench.data("conversation")),
        "finetuning_type": "full", "max_steps": 1, "output_dir": str(bench.path("one")),
    }  # fmt: skip
    model, data, training, finetuning, generating = hparams.get_train_args(keys)
    done = train.run_sft(model, data, training.model_copy(update={"seed": 7}), finetuning, generating)
    record = json.loads((done.output / "run.json").read_text())
    assert record["settings"]["train.seed"] == 7 and record["settings"]["train.epochs"] == 3.0
    two = bench.path("two")
    assert train.run_exp(keys, [f"output_dir={two}"]).output == two
    with pytest.raises(RecipeError, match="run_exp runs any recipe"):
        train.run_sft(*hparams.get_train_args(keys | {"stage": "pt"}))


RUN = {"model_name_or_path": "tiny", "stage": "sft", "dataset": "identity", "output_dir": "runs/x"}


def loop(**keys: Any) -> Train:
    return load_recipe(RUN | keys).train


def test_what_is_left_out_or_switched_off_means_what_it_means_there() -> None:
    held = {"val_size": 0.1, "eval_steps": 5}
    assert [loop(**held).eval_every, loop(**held, eval_strategy="no").eval_every] == [None, None]
    assert loop(**held, eval_strategy=False).eval_every is None  # `no` of YAML 1.1
    assert loop(**held, eval_strategy="steps").eval_every == 5
    assert loop(val_size=0.1, eval_strategy="steps").eval_every == 500
    assert loop(val_size=0.1, eval_strategy="steps", logging_steps=7).eval_every == 7
    for strategy, steps, why in (("epoche", 5, "no `epoche`"), ("steps", 2.5, "whole number of steps")):
        with pytest.raises(RecipeError, match=why):
            loop(eval_strategy=strategy, eval_steps=steps)


def test_steps_may_be_shares_and_epochs() -> None:
    shares = loop(save_steps=0.1, eval_strategy="steps", eval_steps=0.25, logging_steps=0.05, warmup_steps=0.1)
    assert (shares.save_every, shares.eval_every, shares.log_every, shares.warmup) == (0.1, 0.25, 0.05, 0.1)
    assert steps_of(shares.save_every, 42) == 5 and steps_of(shares.eval_every or 0, 42) == 11  # rounded up, as there
    epochs = loop(save_strategy="epoch", eval_strategy="epoch", num_train_epochs=7)
    assert all(steps_of(every or 0, 7 * steps) == steps for every in (epochs.save_every, epochs.eval_every)
               for steps in range(1, 400))  # fmt: skip
    assert loop(eval_strategy="epoch", num_train_epochs=1).eval_every is None
    assert (
        loop(save_strategy="no").save_every == loop(save_strategy="epoch", num_train_epochs=1).save_every >= 1_000_000
    )
    for keys in ({"max_steps": 10}, {"num_train_epochs": 2.5}):
        with pytest.raises(RecipeError, match="epochs must be whole"):
            loop(save_strategy="epoch", **keys)


def test_the_best_is_told_by_the_metric_that_a_file_names() -> None:
    keys = {"model_name_or_path": "tiny", "stage": "dpo", "do_train": True, "dataset": "x", "output_dir": "o"}
    for given, meant in (
        ({"metric_for_best_model": "eval_rewards/accuracies"}, ("eval_rewards/accuracies", None)),
        ({"metric_for_best_model": "eval_kl", "greater_is_better": False}, ("eval_kl", False)),
        ({"greater_is_better": False}, (None, None)),  # which it says of the loss
        ({"metric_for_best_model": None, "greater_is_better": None}, (None, None)),
    ):
        train = load_recipe(keys | given).train
        assert (train.metric_for_best_model, train.greater_is_better) == meant
    with pytest.raises(RecipeError, match="greater_is_better: alone it says of the loss"):
        load_recipe(keys | {"greater_is_better": True})


def test_labels_are_smoothed_where_a_file_says_so() -> None:
    keys = {"model_name_or_path": "tiny", "do_train": True, "dataset": "x", "output_dir": "o"}
    for stage, algorithm in (("sft", SFT), ("pt", Pretrain)):
        for given, meant in (({"label_smoothing_factor": 0.1}, 0.1), ({"label_smoothing_factor": 0}, 0), ({}, 0)):
            assert load_recipe(keys | {"stage": stage} | given).algorithm == algorithm(label_smoothing=meant)
    load_recipe(keys | {"stage": "dpo", "label_smoothing_factor": 0.0})
    for other in ({"stage": "dpo"}, {"use_dft_loss": True}):
        with pytest.raises(RecipeError, match="label_smoothing_factor"):
            load_recipe(keys | other | {"label_smoothing_factor": 0.1})
    with pytest.raises(RecipeError, match="less than 1"):
        load_recipe(keys | {"label_smoothing_factor": 1.0})


def test_precision_is_the_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert [loop(bf16=True).precision, loop(bf16=False).precision, loop().precision] == ["bf16", "fp32", "fp32"]
    assert loop(bf16=True, fp16=False, pure_bf16=False).precision == "bf16"
    assert loop(pure_bf16=True).precision == "bf16" and "trained weights stay fp32" in capsys.readouterr().err
    assert loop(mixed_precision="bf16_mixed").precision == "bf16"
    assert loop(fp16=True).precision == loop(mixed_precision="fp16_mixed").precision == "fp16"
    assert loop(fp16=True, bf16=False, pure_bf16=False).precision == "fp16"
    assert loop(fp16=True).loss_scale == Scaling(), "as torch scales it"
    for keys in ({"fp16": True, "bf16": True}, {"fp16": True, "pure_bf16": True}):
        with pytest.raises(RecipeError, match="another: give one"):
            loop(**keys)
    with pytest.raises(RecipeError, match="there is no `fp8_mixed` here"):
        loop(mixed_precision="fp8_mixed")


def test_gradients_that_are_used_at_once_are_not_clipped() -> None:
    assert loop().max_grad_norm == 1.0 and loop(max_grad_norm=0.3).max_grad_norm == 0.3
    assert loop(use_galore=True, max_grad_norm=0.3).max_grad_norm == 0.3
    for keys in ({"use_galore": True, "galore_layerwise": True}, {"optim": "apollo_adamw_layerwise"}):
        assert loop(**keys, max_grad_norm=1.0, finetuning_type="full").max_grad_norm == 0


def test_checkpoints_warm_up_and_epochs_are_counted_as_there() -> None:
    assert loop().keep_last == loop(save_total_limit=0).keep_last >= 1_000_000
    assert loop(save_total_limit=3).keep_last == 3
    warm = {"warmup_ratio": 0.1}
    assert (
        loop(lr_scheduler_type="constant", **warm).warmup
        == loop(lr_scheduler_type="constant", warmup_steps=5).warmup
        == 0
    )
    assert loop(lr_scheduler_type="constant_with_warmup", **warm).warmup == loop(**warm).warmup == 0.1
    assert loop(**warm, warmup_steps=5).warmup == 5
    data = load_recipe(RUN).data
    assert isinstance(data, Data) and data.steps_end_with_epochs()
    assert isinstance(data, DatasetConfig) and data.bad_rows == "skip"


def test_a_row_that_cannot_be_read_or_has_media_is_left_out_and_counted(bench: Bench) -> None:
    good = {"conversations": [{"from": "human", "value": "hello"}, {"from": "gpt", "value": "yes"}]}
    call = {"from": "function_call", "value": "{'name': 'f'}"}
    shown = {"conversations": [{"from": "human", "value": "<video>"}, good["conversations"][1]], "pictures": ["a.mp4"]}
    rows = [good, {"conversations": [good["conversations"][0], call]}, shown, good]
    bench.path("shown.json").write_text(json.dumps(rows))
    columns = {"messages": "conversations"}
    info = {"shown": {"file_name": "shown.json", "formatting": "sharegpt", "columns": columns}}
    bench.path("dataset_info.json").write_text(json.dumps(info))
    keys = RUN | {"model_name_or_path": str(bench.model()), "dataset": "shown", "dataset_dir": str(bench.root)}
    recipe = load_recipe(keys | {"template": "default"})
    assert isinstance(recipe.data, DatasetConfig)
    report = recipe.data.preview(recipe, 1)["report"]
    assert report["examples"] == 2
    assert sorted(why[:20] for why in report["sources"][0]["bad"]) == ["a tool call is not J", "it has pictures, and"]


def test_what_is_not_installed_says_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    from gym_core import discovery, metadata

    folders = [folder for folder in metadata.metadata_folders() if folder.name != "gym-adapters"]
    monkeypatch.setattr(discovery, "metadata_folders", lambda: folders)
    discovery.installed.cache_clear()
    try:
        keys = {"model_name_or_path": "tiny", "dataset": "identity", "stage": "sft"}
        with pytest.raises(PluginError, match="pip install gym-adapters") as caught:
            load_recipe(keys | {"finetuning_type": "freeze"})
        assert [problem.key for problem in caught.value.problems] == ["finetuning_type"]
        with pytest.raises(PluginError, match="`freeze`, which is not installed") as caught:
            load_recipe(keys | {"adapter": None, "freeze_trainable_layers": 2, "finetuning_type": "lora"})
        assert {problem.fix for problem in caught.value.problems} == {"pip install gym-adapters"}
    finally:
        discovery.installed.cache_clear()


@pytest.mark.parametrize(
    ("told", "meant"),
    [
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}, "gradient_clipping": "auto"}, "FSDP"),
        ({"zero_optimization": {"stage": 2}}, "FSDP"),
        ({"zero_optimization": {"stage": 0}, "bf16": {"enabled": "auto"}}, "DDP"),
        ({"tensor_parallel": {"autotp_size": 2}}, "leave it out, and take stage 3"),
        ({"train_micro_batch_size_per_gpu": 4}, "set `per_device_train_batch_size`"),
        ({"fp16": {"enabled": True}}, "write auto there, and set `fp16`"),
        ({"bf16": {"enabled": True}}, "write auto there, and set `bf16`"),
    ],
)
def test_a_file_of_deepspeed_is_a_strategy(bench: Bench, told: dict[str, Any], meant: str) -> None:
    file = bench.path("ds.json")
    file.write_text(json.dumps(told))
    if meant in ("DDP", "FSDP"):
        recipe = load_recipe(RUN | {"deepspeed": str(file), "ddp_timeout": 9})
        assert type(recipe.distributed).__name__ == meant and recipe.train.max_grad_norm == 1.0
    else:
        with pytest.raises(RecipeError, match=meant) as caught:
            load_recipe(RUN | {"deepspeed": str(file)})
        assert [problem.key for problem in caught.value.problems] == ["deepspeed"]


def test_a_file_of_deepspeed_says_how_the_loss_of_fp16_is_scaled(bench: Bench) -> None:
    """Without `fp16` it says nothing; what is left out is what DeepSpeed means by that."""
    file = bench.path("ds.json")

    def read(told: dict[str, Any], **keys: Any) -> Scaling:
        file.write_text(json.dumps({"fp16": told, "zero_optimization": {"stage": 2}}))
        train = load_recipe(RUN | {"deepspeed": str(file)} | keys).train
        assert train.precision == ("fp16" if keys else "fp32")
        return train.loss_scale

    usual = {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 500, "initial_scale_power": 12, "hysteresis": 3,
             "min_loss_scale": 2}  # fmt: skip
    assert read(usual) == Scaling()
    meant = Scaling(init_scale=4096.0, growth_interval=500, hysteresis=3, min_loss_scale=2.0)
    assert read(usual, fp16=True) == read(usual | {"enabled": True}, fp16=True) == meant
    assert read({}, fp16=True) == Scaling(growth_interval=1000, hysteresis=2)
    for wrong, why in (
        ({"loss_scale": 128}, "a scale that stays is not here"),
        ({"enabled": False}, "write auto there"),
        ({"consecutive_hysteresis": True}, "leave it out"),
        ({"hysteresis": 0}, "hysteresis"),
    ):
        with pytest.raises(RecipeError, match=why):
            read(wrong, fp16=True)


def test_words_of_fsdp_are_a_strategy() -> None:
    for said, meant in (
        (["full_shard", "auto_wrap"], "FSDP"),
        ("full_shard offload", "FSDP"),
        ("", "DDP"),
        (None, "DDP"),
    ):
        assert type(load_recipe(RUN | {"fsdp": said}).distributed).__name__ == meant
    with pytest.raises(RecipeError, match="is not one of full_shard"):
        load_recipe(RUN | {"fsdp": "full_shards"})


def test_ppo_samples_as_there() -> None:
    keys = RUN | {"stage": "ppo", "reward_model": "tiny"}
    usual: Any = load_recipe(keys).algorithm
    assert (usual.temperature, usual.top_p, usual.top_k) == (0.95, 0.7, 50)
    assert (usual.max_new_tokens, usual.beta, usual.vf_coef) == (1024, 0.2, 0.1)
    assert (usual.kl_estimator, usual.kl_target, usual.kl_horizon) == ("k1_in_reward", 6.0, 10_000)
    given: Any = load_recipe(
        keys | {"temperature": 1.0, "max_new_tokens": 64, "beta": 0.1, "ppo_buffer_size": 2, "ppo_epochs": 3}
    ).algorithm
    assert (given.temperature, given.max_new_tokens, given.beta, given.num_mini_batches) == (1.0, 64, 0.1, 2)
    assert (usual.num_iterations, given.num_iterations) == (4, 3)
    same = {"do_sample": True, "num_beams": 1, "repetition_penalty": 1.0, "top_k": 50}
    assert load_recipe(keys | same).fingerprint() == load_recipe(keys).fingerprint()
    off: Any = load_recipe(keys | {"top_k": 0}).algorithm
    assert off.top_k == 0
    others = {"do_sample": False, "num_beams": 4, "repetition_penalty": 1.2}
    assert (given.beta, given.kl_target) == (0.1, None)  # an option of ours means what it does here
    adapted: Any = load_recipe(keys | {"ppo_target": 0.5}).algorithm
    assert (adapted.beta, adapted.kl_target) == (0.2, 0.5)
    for key, value in {**others, "ppo_whiten_rewards": True}.items():
        with pytest.raises(RecipeError, match=r"only `"):
            load_recipe(keys | {key: value})


def test_a_step_of_ppo_is_a_round_of_several() -> None:
    keys = RUN | {"stage": "ppo", "reward_model": "tiny", "max_steps": 10, "save_steps": 5, "warmup_steps": 2}
    for more, steps in (({}, 4), ({"ppo_epochs": 3, "ppo_buffer_size": 2}, 6), ({"max_steps": "10"}, 4)):
        train = load_recipe(keys | {"logging_steps": 1, **more}).train
        assert (train.max_steps, train.save_every, train.warmup, train.log_every) == tuple(
            steps * there for there in (10, 5, 2, 1)
        )
    shared = load_recipe(
        keys | {"save_steps": 0.1, "warmup_steps": 0, "warmup_ratio": 0.1, "save_strategy": "steps"}
    ).train
    assert (shared.save_every, shared.warmup) == (0.1, 0.1)
    with pytest.raises(RecipeError, match="belongs to algorithm `ppo`"):
        load_recipe(RUN | {"ppo_epochs": 3, "max_steps": 10})


def test_an_attention_that_is_not_installed_is_said_and_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    model: Any = load_recipe(RUN | {"flash_attn": "fa2"}).model
    assert model.attention == "auto" and "flash_attn: fa2 needs the package" in capsys.readouterr().err
    assert not model.kernels
    sdpa: Any = load_recipe(RUN | {"flash_attn": "sdpa"}).model
    assert sdpa.attention == "sdpa"
    with pytest.raises(RecipeError, match="is one of: auto, sdpa, disabled, fa2, fa3"):
        load_recipe(RUN | {"flash_attn": "fa4"})


@pytest.mark.parametrize(("value", "package"), [("fa2", "flash_attn"), ("fa3", "flash_attn_interface")])
def test_flash_attention_that_is_installed_is_a_kernel_for_packed_rows(
    value: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{package}.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    alone: Any = load_recipe(RUN | {"flash_attn": value}).model
    both: Any = load_recipe(RUN | {"flash_attn": value, "enable_liger_kernel": True}).model
    assert [each.package for each in alone.kernels] == [package] and alone.attention == "auto"
    assert [each.package for each in both.kernels] == [package, "liger_kernel"]
    assert missing(value, known=()) == "gym-accel" and not missing(value) and not missing("sdpa", known=())


def test_kernels_of_liger_are_tried_where_a_file_asks_for_them() -> None:
    found: Any = load_recipe(RUN | {"enable_liger_kernel": True}).model
    assert [type(each).__name__ for each in found.kernels] == ["Liger"]
    off: Any = load_recipe(RUN | {"enable_liger_kernel": False}).model
    assert not off.kernels
    with pytest.raises(RecipeError, match="enable_liger_kernel"):
        load_recipe(RUN | {"use_liger_kernel": True})


def test_a_run_goes_on_from_the_output_directory_of_another(bench: Bench) -> None:
    keys = RUN | {
        "model_name_or_path": str(bench.model()), "dataset": str(bench.data("conversation")), "max_steps": 1,
        "finetuning_type": "lora", "lora_rank": 2, "cutoff_len": 64, "plot_loss": False,
    }  # fmt: skip
    first = train.run_exp(keys | {"output_dir": str(bench.path("first"))}).output
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        assert (first / name).read_bytes() == (first / "model" / name).read_bytes()
    chained = keys | {"output_dir": str(bench.path("second")), "adapter_name_or_path": str(first)}
    assert (train.run_exp(chained).output / "adapter_config.json").is_file()
    (first / "adapter_config.json").unlink()  # as a run of Gym's own recipe leaves it
    adapter: Any = load_recipe(chained).adapter
    assert adapter.adapter_name_or_path == str(first / "model")


def watching(**keys: Any) -> list[dict[str, Any]]:
    """Return what trackers are told, but for what they mean by themselves."""
    return [
        {"of": type(each).__name__, **each.model_dump(exclude_unset=True)}
        for each in load_recipe(RUN | keys).callbacks
        if type(each).__name__ != "ModelInOutput"
    ]


def test_trackers_are_callbacks() -> None:
    assert not watching(report_to="none", run_name="x") and not watching(report_to=["none"], use_swanlab=False)
    wandb = {"of": "WandB", "mode": "online", "run": "first"}
    stopping = {"of": "EarlyStopping", "patience": 2}
    assert watching(early_stopping_steps=2, report_to="wandb", run_name="first") == [stopping, wandb]
    assert watching(report_to="wandb,tensorboard", run_name="first", logging_dir="logs") == [
        wandb,
        {"of": "TensorBoard", "run": "first", "folder": "logs"},
    ]
    assert watching(report_to=["trackio"], project="mine", trackio_space_id="me/it") == [
        {"of": "Trackio", "project": "mine", "space_id": "me/it"}
    ]
    swanlab = {"of": "SwanLab", "mode": "local", "run": "second"}
    keys = {"swanlab_run_name": "second", "swanlab_mode": "local", "run_name": "first"}
    assert watching(use_swanlab=True, report_to="swanlab", **keys) == [swanlab]
    with pytest.raises(RecipeError, match="there is no tracker `comet_ml`"):
        watching(report_to="comet_ml")
    with pytest.raises(RecipeError, match="should hold no token"):
        watching(use_swanlab=True, swanlab_api_key="secret")


def test_packing_is_how_plain_text_is_cut() -> None:
    def cut(**keys: Any) -> str:
        return load_recipe(RUN | keys).data.split  # type: ignore[union-attr]

    assert [cut(stage="pt"), cut(stage="pt", packing=True), cut(stage="pt", packing=False)] == [
        "blocks",
        "blocks",
        "documents",
    ]
    assert cut(packing=False) == "blocks"  # which says nothing of conversations
    for key in ("packing", "neat_packing"):
        with pytest.raises(
            RecipeError, match=r"a batch count rows of cutoff_len tokens(.|\n)*multiply per_device_train"
        ):
            cut(**{key: True})
    assert loop(use_unsloth_gc=True).gradient_checkpointing == "offload"


def test_products_in_fp8_are_those_with_a_scale_for_each_row() -> None:
    def of(**keys: Any) -> Any:
        model: Any = load_recipe(RUN | keys).model
        return model.fp8

    assert of(fp8=True) == of(fp8=True, fp8_backend="torchao", fp8_enable_fsdp_float8_all_gather=True) == "rowwise"
    assert of() is of(fp8=False) is of(fp8=False, fp8_backend="te") is None
    with pytest.raises(RecipeError, match="fp8_backend: te"):
        of(fp8=True, fp8_backend="te")
