"""Training on images is what transformers computes of the same conversations, with the processor of the model."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from asked_images import reference
from image_rows import ROWS
from model_parts import ALL, PROJECTOR, TOWER, adapted, part
from safetensors.torch import load_file
from torch.nn import functional
from transformers import CONFIG_MAPPING, AutoModelForImageTextToText

from gym_core import GymError, execute, load_recipe
from gym_core.loading import load_component
from gym_data import DatasetConfig, File
from gym_data.prepare import prepare
from gym_data.tokenizer import Tokenizer
from gym_quant.post_training.calibration import draw
from gym_sft import SFT
from gym_sft.objective import NextToken
from gym_testkit.vision_models import FAMILIES
from gym_torch.memory.gradient_checkpointing import recompute_layers
from gym_torch.model.auto_class import AutoLanguageModel
from gym_torch.packing import ALONE, PADDED
from gym_torch.policy import Policy
from gym_vision import Vision
from gym_vision.media_reader import ProcessorMedia

EVERY = pytest.mark.parametrize("family", FAMILIES)


def prepared(rows, path, **options):
    return prepare(DatasetConfig(sources=[File(path=str(rows))], media=Vision(), **options), path)


@EVERY
def test_tokens_and_inputs_are_those_of_the_processor(family, model, rows):
    found = prepared(rows, model(family))
    assert len(found.train) == len(ROWS)
    for example, row in zip(found.train, ROWS, strict=True):
        expected = reference(model(family), rows, row)
        np.testing.assert_array_equal(example.tokens, expected["input_ids"][0])
        given = example.model_inputs()
        assert bool(given) == bool(row["images"])
        for name, value in given.items():
            torch.testing.assert_close(torch.from_numpy(value), expected[name], rtol=0, atol=0)


@EVERY
def test_loss_and_gradient_are_those_of_transformers(family, model, rows):
    found = prepared(rows, model(family))
    whole = adapted(family, model, **ALL)
    policy = Policy(whole.model)
    recompute_layers(whole.model)  # those of the vision tower too
    exact = AutoModelForImageTextToText.from_pretrained(model(family)).double().train()
    batch = NextToken(SFT(), ALONE).collate(list(found.train))
    loss, _ = NextToken(SFT(), ALONE).loss(policy, batch)
    loss.backward()

    total = torch.zeros((), dtype=torch.float64)
    for example, row in zip(found.train, ROWS, strict=True):
        given = reference(model(family), rows, row)
        given = {name: value.double() if value.is_floating_point() else value for name, value in given.items()}
        labels = torch.where(torch.from_numpy(example.trained), given["input_ids"], -100)
        logits = exact(**given, use_cache=False).logits
        total = total + functional.cross_entropy(logits[0, :-1], labels[0, 1:], ignore_index=-100, reduction="sum")
    total.backward()

    torch.testing.assert_close(loss.double(), total, rtol=1e-5, atol=0)
    expected = {name: weight.grad for name, weight in exact.named_parameters()}
    check_gradient(whole, expected)
    assert {part(name) for name in whole.state()} == {"language", "tower", "projector"}
    for options, alone in ((TOWER, "tower"), (PROJECTOR, "projector")):
        full = adapted(family, model, **options)
        assert full.state().keys() == {name for name in whole.state() if part(name) == alone}
        NextToken(SFT(), ALONE).loss(Policy(full.model), batch)[0].backward()
        check_gradient(full, expected)


def check_gradient(full, expected):
    """Compare the gradient of what trains with that in float64."""
    found = {name: weight.grad for name, weight in full.model.named_parameters() if weight.requires_grad}
    assert any(part(name) != "language" and grad is not None and grad.any() for name, grad in found.items())
    for name, grad in found.items():
        if expected[name] is None:  # of a head of the tower that the model does not look at
            assert grad is None or not grad.any(), name
            continue
        off = (grad.double() - expected[name]).norm()
        assert off <= 1e-4 * expected[name].norm() + 1e-6, name


@EVERY
def test_answers_alone_are_trained_on(family, model, rows):
    path = model(family)
    for example, row in zip(prepared(rows, path).train, ROWS, strict=True):
        trained = Tokenizer(path).decode(example.tokens[example.trained])
        answers = [message["content"] for message in row["messages"] if message["role"] == "assistant"]
        assert trained == "".join(f"{answer}<|im_end|>" for answer in answers)


@EVERY
def test_tokens_of_images_are_none_of_texts(family, model):
    """A line break would end a completion, and one beyond the cutoff leave its row out."""
    reader = ProcessorMedia(Vision(), model(family))
    assert {Tokenizer(model(family)).written(token) for token in reader.tokens} == reader.texts
    assert set() < reader.texts <= set(FAMILIES[family]["tokens"])


def test_rows_that_are_not_computed_one_by_one_are_refused(model, rows):
    policy = Policy(AutoLanguageModel.from_pretrained(model("llava"), dtype=torch.float32))
    batch = NextToken(SFT(), PADDED).collate(list(prepared(rows, model("llava")).train))
    with pytest.raises(GymError, match="one by one"):
        policy(batch)


def test_partial_training_is_of_the_language_model_where_the_tower_has_as_many_layers(model):
    freeze = load_component("adapters", "freeze")[1](trainable_layers=1)
    trained = freeze.build(model=AutoLanguageModel.from_pretrained(model("qwen2_5_vl")), seed=0).state()
    assert trained
    assert all(name.startswith("model.language_model.layers.1.") for name in trained)


@pytest.mark.parametrize("adapter", ["prompt_tuning", "prefix_tuning", "longlora"])
def test_adapters_that_change_attention_to_text_are_refused(adapter, model):
    with pytest.raises(GymError, match="attends to more than text"):
        load_component("adapters", adapter)[1]().build(
            model=AutoLanguageModel.from_pretrained(model("qwen2_5_vl")), seed=0
        )


def test_calibration_reads_text_alone(model, rows):
    recipe = load_recipe(
        {
            "model": str(model("llava")),
            "data": {"sources": [{"name": "file", "path": str(rows)}], "media": "vision"},
            "algorithm": "sft",
        }
    )
    for name, options in (("gptq", {}), ("rtn", {"max_kl": 1.0})):
        with pytest.raises(GymError, match="calibrates on text alone"):
            draw(load_component("quantizers", name)[1](**options), SimpleNamespace(recipe=recipe), model("llava"))
    assert draw(load_component("quantizers", "rtn")[1](), SimpleNamespace(recipe=recipe), model("llava")) is None


def test_a_processor_that_frames_texts_itself_is_refused(model):
    with pytest.raises(GymError, match="PaliGemmaProcessor writes more than the image"):
        ProcessorMedia(Vision(), model("paligemma"))


def test_families_of_which_the_text_part_alone_is_loaded_take_no_images():
    kinds = {name: CONFIG_MAPPING[name]() for name in ("qwen3_5", "llama4", "qwen3", *FAMILIES)}
    assert [name for name, config in kinds.items() if AutoLanguageModel.reads_media(config)] == list(FAMILIES)


def test_a_run_trains_the_language_model_and_goes_on_exactly(model, rows, tmp_path):
    def run(output, steps):
        recipe = {
            "model": {"path": str(model("qwen2_5_vl")), "compile": False},
            "data": {"sources": [{"name": "file", "path": str(rows)}], "media": "vision"},
            "algorithm": "sft",
            "scheduler": "constant",
            "train": {
                "max_steps": steps,
                "batch_size": 2,
                "learning_rate": 1e-2,
                "precision": "fp32",
                "save_every": 1,
            },
            "output": str(output),
        }
        execute(load_recipe(recipe))
        return _weights(output / "model")

    whole = run(tmp_path / "whole", 3)
    run(tmp_path / "parted", 1)
    parted = run(tmp_path / "parted", 3)
    assert whole.keys() == parted.keys()
    assert all(torch.equal(whole[name], parted[name]) for name in whole)
    base = _weights(model("qwen2_5_vl"))
    changed = {name for name in base if not torch.equal(base[name], whole[name])}
    assert changed
    assert not any("visual" in name for name in changed)
    assert (tmp_path / "whole" / "model" / "preprocessor_config.json").exists()


def _weights(folder):
    (file,) = folder.glob("*.safetensors")
    return load_file(file)
