"""Scaled positions: the formulas of their papers, in the configuration of all that comes of a run, and refusals."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gym_torch_bench import Memory, make_run, samples, train
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, PreTrainedModel

from gym_adapters import LoRA
from gym_core import GymError, Run, load_recipe
from gym_core.record import RunRecord
from gym_export import SafetensorsExporter
from gym_torch import Transformers
from gym_torch.attention.segment_attention import NAME
from gym_torch.batch import Piece, alone, packed, padded
from gym_torch.checkpoints.open_artifact import open_artifact
from gym_torch.config import Further, RopeScaling
from gym_torch.model.adapted import adapt
from gym_torch.model.hidden_states import hidden_states
from gym_torch.model.loading import load_frozen
from gym_torch.model.rope_scaling import scale, steady
from gym_torch.packing import PACKED
from gym_torch.policy import Policy
from gym_torch.reference import Reference

WINDOW, DIM = 1024, 8  #: of the tiny model: positions, and width of a head


def loaded(path: Path, asked: Any, samples: int | None = None) -> PreTrainedModel:
    model: PreTrainedModel = load_frozen(
        Transformers(path=str(path), rope_scaling=asked), "fp32", PACKED, samples=samples
    ).model
    return model


def plain_frequencies(path: Path) -> np.ndarray:
    theta = AutoConfig.from_pretrained(path).rope_parameters["rope_theta"]
    return theta ** (-np.arange(0, DIM, 2) / DIM)


def frequencies(model: PreTrainedModel) -> np.ndarray:
    return model.base_model.rotary_emb.inv_freq.double().numpy()


def test_linear_divides_every_frequency(model_path: Path) -> None:
    model = loaded(model_path, "linear", samples=3000)
    assert model.config.max_position_embeddings == 3 * WINDOW
    np.testing.assert_allclose(frequencies(model), plain_frequencies(model_path) / 3, rtol=1e-6)


def test_llama3_divides_those_whose_waves_are_longer_than_the_window(model_path: Path) -> None:
    model = loaded(model_path, {"type": "llama3", "factor": 8.0, "window": 64})
    expected = []
    for frequency in plain_frequencies(model_path):
        turns = 64 * frequency / (2 * math.pi)  # in the window of pretraining
        share = min(1.0, max(0.0, (turns - 1) / (4 - 1)))
        expected.append(share * frequency + (1 - share) * frequency / 8)
    assert 0 < sum(each == 0 for each in expected - plain_frequencies(model_path)) < len(expected)
    np.testing.assert_allclose(frequencies(model), expected, rtol=1e-6)
    assert model.config.max_position_embeddings == 512


def test_yarn_is_a_ramp_between_the_two_and_sharpens_attention(model_path: Path) -> None:
    model = loaded(model_path, RopeScaling(type="yarn", factor=4.0))
    plain = plain_frequencies(model_path)
    theta = model.config.rope_parameters["rope_theta"]
    low, high = (
        edge(DIM * math.log(WINDOW / (turns * 2 * math.pi)) / (2 * math.log(theta)))
        for edge, turns in ((math.floor, 32), (math.ceil, 1))
    )
    ramp = np.clip((np.arange(DIM // 2) - max(low, 0)) / (min(high, DIM - 1) - max(low, 0)), 0, 1)
    np.testing.assert_allclose(frequencies(model), ramp * plain / 4 + (1 - ramp) * plain, rtol=1e-6)
    assert model.base_model.rotary_emb.attention_scaling == pytest.approx(0.1 * math.log(4) + 1)


def hidden(model: PreTrainedModel, length: int, lay_out: Any = alone) -> torch.Tensor:
    tokens = np.arange(length, dtype=np.int32) % 250
    batch = lay_out(
        [Piece("x", tokens, np.ones(length, dtype=bool)), Piece("y", tokens[:9], np.ones(9, dtype=bool))], ()
    )
    with torch.no_grad():
        return hidden_states(model, batch)


@pytest.mark.parametrize("training", [False, True])
def test_dynamic_is_the_model_itself_up_to_its_window_and_keeps_nothing_of_what_was_longer(
    model_path: Path, training: bool
) -> None:
    plain = AutoModelForCausalLM.from_pretrained(model_path).eval()
    short = loaded(model_path, RopeScaling(type="dynamic", factor=2.0, window=32), samples=32).train(training)
    plain.set_attn_implementation(short.config._attn_implementation)
    expected = hidden(plain, 32)
    assert torch.equal(hidden(short, 32), expected)
    first, longer = hidden(short, 48), hidden(short, 64)
    assert not torch.allclose(first, hidden(plain, 48), atol=1e-3)
    assert torch.equal(hidden(short, 48), first), "a longer text before it changed it"
    assert torch.equal(hidden(short, 32), expected) and torch.equal(hidden(short, 64), longer)


@pytest.mark.parametrize("lay_out", [packed, padded])
def test_positions_that_would_follow_from_a_neighbour_are_refused(model_path: Path, lay_out: Any) -> None:
    short = loaded(model_path, RopeScaling(type="dynamic", factor=2.0, window=32), samples=32)
    hidden(short, 32, lay_out)
    with pytest.raises(GymError, match="change the positions of those beside it"):
        hidden(short, 33, lay_out)


def test_dynamic_of_a_model_that_says_so_itself_is_as_steady(model_path: Path) -> None:
    shape = AutoConfig.from_pretrained(model_path)
    shape.rope_parameters = {**shape.rope_parameters, "rope_type": "dynamic", "factor": 2.0}
    shape.max_position_embeddings = 32
    model = AutoModelForCausalLM.from_config(shape, attn_implementation=NAME).eval()
    steady(model)
    first = hidden(model, 48)
    hidden(model, 64)
    assert torch.equal(hidden(model, 48), first)


@pytest.mark.parametrize("adapter", [None, LoRA(rank=2)])
def test_what_comes_of_a_run_carries_it(model_path: Path, tmp_path: Path, adapter: Any) -> None:
    backend = Transformers(path=str(model_path), rope_scaling=RopeScaling(type="yarn", factor=4.0, window=16))
    run = make_run(model_path, tmp_path / "run", Memory(), sections={"model": backend, "adapter": adapter}, max_steps=2)
    artifact = train(run)
    found = open_artifact(artifact).model
    assert found.config.rope_parameters["rope_type"] == "yarn" and found.config.max_position_embeddings == 64
    written = SafetensorsExporter().build().export(artifact, tmp_path / "export")
    saved = json.loads((written / "config.json").read_text())
    assert saved["rope_parameters"] == found.config.rope_parameters
    tokens = torch.arange(3, 40)[None]
    with torch.no_grad():
        exported = AutoModelForCausalLM.from_pretrained(written).eval()(tokens).logits
        assert torch.allclose(exported, found.eval()(tokens).logits, atol=1e-5)
        found.config.rope_parameters = AutoConfig.from_pretrained(model_path).rope_parameters
        other = type(found)(found.config).eval()
        assert not np.allclose(frequencies(other), frequencies(found))


def test_a_reference_and_a_resumed_run_scale_alike(model_path: Path, tmp_path: Path) -> None:
    recipe = load_recipe(
        {"model": {"path": str(model_path), "rope_scaling": "linear"}, "algorithm": "sft"}
        | {"data": {"sources": ["none.jsonl"], "cutoff": 2 * WINDOW}}
    )
    trained = load_frozen(recipe.model, "fp32", PACKED, samples=2 * WINDOW)
    policy = Policy(trained.model).eval()
    run = Run(recipe, tmp_path, RunRecord(tmp_path / "run.json"))
    frozen = Reference(Further(None), policy, adapt(trained.model, recipe), trained, run).load()
    batch = packed([samples(3)[number] for number in range(3)])
    assert torch.equal(frozen(batch), policy(batch).detach())
    other = Transformers(path=str(tmp_path), rope_scaling="linear")
    assert other.other(str(model_path)).rope_scaling is None, "another model says itself how it is scaled"


def test_the_factor_is_what_the_samples_need(model_path: Path) -> None:
    shape = AutoConfig.from_pretrained(model_path)
    scale(shape, "yarn", 4 * WINDOW - 1)
    assert shape.rope_parameters["factor"] == 4.0
    with pytest.raises(GymError, match="scales its positions already: yarn"):
        scale(shape, "linear", 4 * WINDOW)
    for asked, known, why in [("yarn", WINDOW, "samples fit the 1,024 positions"), ("yarn", None, "is not known")]:
        with pytest.raises(GymError, match=why) as caught:
            scale(AutoConfig.from_pretrained(model_path), asked, known)
        assert caught.value.problems[0].key == "model.rope_scaling"
    with pytest.raises(GymError, match="gpt2 model has no rotary positions"):
        scale(GPT2Config(), "linear", 10_000)
