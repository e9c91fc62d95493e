"""What is made of a model that was trained on images reads them as it did: exports, merges and quantized models."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from asked_images import GREEDY, NEW, answered, engine_of, messages_of, reference
from image_rows import ROWS
from transformers import AutoModelForImageTextToText

from gym_core import Artifact, execute, load_recipe
from gym_core.loading import load_component
from gym_deltasoup import Input, merge_artifacts
from gym_export import SafetensorsExporter, TorchScript
from gym_manage.recorded import recorded
from gym_quant import RTN
from gym_serve.contract import Request
from gym_serve.on_disk import OnDisk
from gym_torch.model import mapped_weights
from gym_torch.quantization.weights import stored_modules
from gym_torch.recorded_components import media_of
from gym_vision import Vision

SOME = pytest.mark.parametrize(
    "family", ["qwen2_5_vl", "llava"]
)  #: weights have one name in the model, another in files
READ = Vision(max_pixels=1600)


@pytest.fixture(scope="session")
def trained(model, rows, tmp_path_factory):
    """A function that returns what a run of a family made."""
    made = {}

    def run(family, rate=3e-2):
        if (family, rate) not in made:
            output = tmp_path_factory.mktemp("trained")
            recipe = {
                "model": {"path": str(model(family)), "compile": False},
                "data": {
                    "sources": [{"name": "file", "path": str(rows)}],
                    "media": {"name": "vision", "max_pixels": 1600},
                },
                "algorithm": "sft",
                "adapter": {"name": "lora", "rank": 4},
                "train": {"max_steps": 3, "batch_size": 3, "learning_rate": rate, "precision": "fp32"},
                "output": str(output),
            }
            execute(load_recipe(recipe))
            made[family, rate] = recorded(output).trained
        return made[family, rate]

    return run


def asked(path, rows):
    """Return what Gym answers that is told nothing of images, and what transformers does of the same folder, by tokens."""
    engine = engine_of(path, media=None)
    messages = messages_of(ROWS[0], lambda name: OnDisk(name, rows.parent))
    ((tokens, _),) = answered(engine, Request("it", messages=messages, sampling=GREEDY))
    return tokens


def expected(path, rows):
    row = {**ROWS[0], "messages": ROWS[0]["messages"][:-1]}
    given = reference(path, rows, row, prompt=True, media=READ)
    model = AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32)
    found = model.generate(**given, max_new_tokens=NEW, do_sample=False, eos_token_id=None)
    return found[0, given["input_ids"].shape[1] :].tolist()


@SOME
def test_an_export_answers_as_the_run_and_as_transformers(family, trained, rows, tmp_path):
    run = trained(family)
    made = SafetensorsExporter().build().export(run, tmp_path / "export")
    assert media_of(Artifact.read(made)) == READ
    assert asked(made, rows) == asked(run.path.parent, rows) == expected(made, rows)


def test_a_graph_says_that_it_takes_text_alone(trained, tmp_path, capsys):
    made = TorchScript().build().export(trained("llava"), tmp_path / "graph")
    assert "it leaves out what llava has beside its language model" in capsys.readouterr().err
    assert json.loads((made / "certificate.json").read_text())["left_out"].endswith("it takes text alone")


@SOME
def test_a_quantized_model_answers_as_transformers(family, trained, rows, tmp_path, capsys):
    run = trained(family)
    context = SimpleNamespace(recipe=SimpleNamespace(data=None, train=SimpleNamespace(seed=0)))
    made = RTN(bits=8, group_size=16).build().quantize(run=context, artifact=run, into=tmp_path / "quantized")
    assert "which read images, stay as they are" in capsys.readouterr().err
    assert media_of(made) == READ
    told = json.loads((made.path / "quantization.json").read_text())["layers"]
    assert told
    assert not any("vis" in name for name in told)
    assert asked(made.path, rows) == expected(made.path, rows)


def test_merged_adapters_say_how_images_are_read(trained, tmp_path):
    runs = [trained("qwen2_5_vl", rate) for rate in (3e-2, 1e-2)]
    median = load_component("mergers", "median")[1]()
    made = merge_artifacts(median, [Input(run.path) for run in runs], tmp_path / "merged").artifact
    assert media_of(Artifact.read(made.path)) == READ


@pytest.mark.parametrize("family", ["qwen2_5_vl", "gemma3"])
@pytest.mark.parametrize("whole", [False, True])
def test_the_vision_tower_is_quantized_where_it_is_asked_for_alone(family, whole, model):
    hqq = load_component("quantizers", "hqq")[1](convert_vision_tower=whole)
    held = stored_modules(mapped_weights.load(model(family), quantizer=hqq))
    assert any("language_model" in name for name in held)
    assert any("vis" in name for name in held) == whole
