"""Vision tower, projector and language model train where they are asked to, as transformers would have them."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from model_parts import ALL, PROJECTOR, TOWER, adapted, part
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText

from gym_bitdelta import BitDelta
from gym_core import GymError, RecipeError, execute, load_recipe
from gym_core.loading import load_component
from gym_manage.recorded import recorded
from gym_quant import RTN
from gym_torch.checkpoints.open_artifact import plain_model
from gym_torch.model.auto_class import AutoLanguageModel

CONTEXT = SimpleNamespace(recipe=SimpleNamespace(data=None, train=SimpleNamespace(seed=0)))


@pytest.mark.parametrize("family", ["qwen3_vl", "gemma4"])
def test_lora_adapts_the_parts_that_are_not_frozen_and_peft_opens_it(family, model, rows, tmp_path):
    each = {alone: adapted(family, model, "lora", rank=2, **options) for alone, options in
            (("tower", TOWER), ("projector", PROJECTOR), ("language", {}))}  # fmt: skip
    for alone, lora in each.items():
        assert {part(name) for name in lora.state()} == {alone}
    lora = adapted(family, model, "lora", rank=2, **ALL)
    assert lora.state().keys() == {name for one in each.values() for name in one.state()}
    with torch.no_grad():
        for weight in lora.state().values():
            weight.normal_(std=0.1)
    lora.save(tmp_path, base=str(model(family)))
    base = AutoModelForImageTextToText.from_pretrained(model(family), dtype=torch.float32)
    theirs = PeftModel.from_pretrained(copy.deepcopy(base), tmp_path).merge_and_unload()
    ours, untouched = lora.merged().state_dict(), base.state_dict()
    changed = {part(name) for name, weight in ours.items() if not torch.equal(weight, untouched[name])}
    assert changed == {"language", "tower", "projector"}
    for name, weight in theirs.state_dict().items():
        torch.testing.assert_close(ours[name], weight, rtol=1e-5, atol=1e-6)


def test_named_layers_of_the_language_model_are_not_those_of_the_tower(model):
    for name in ("lora", "oft"):
        found = adapted("llava", model, name, target_modules="q_proj,mlp").state()
        assert {part(name) for name in found} == {"language"}
    assert {part(name) for name in adapted("llava", model, "lora", target_modules="q_proj", **TOWER).state()} == {
        "tower"
    }
    assert {part(name) for name in adapted("qwen3_vl", model, "ln_tuning").state()} == {"language"}


def test_parts_that_are_not_there_or_see_nothing_are_refused(model, rows, tmp_path):
    with pytest.raises(ValueError, match="nothing is left to train"):
        load_component("adapters", "full")[1](freeze_language_model=True)
    text = AutoLanguageModel.from_pretrained(load_component("families", "tiny")[1]().build())
    for options, key in ((TOWER, "freeze_language_model"), (ALL, "freeze_multi_modal_projector")):
        with pytest.raises(GymError, match=f"{key}: .* reads no images"):
            load_component("adapters", "full")[1](**options).build(model=text, seed=0)
    with pytest.raises(RecipeError, match="no images are read"):
        text_rows = rows.with_name("text.jsonl")
        text_rows.write_text(
            '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'
        )
        run("llava", model, text_rows, tmp_path / "text", {"name": "full", **TOWER}, media=None)


def run(family, model, rows, output, adapter, media="vision", **train):
    data = {"sources": [{"name": "file", "path": str(rows)}]} | ({"media": media} if media else {})
    execute(
        load_recipe(
            {
                "model": {"path": str(model(family)), "compile": False},
                "data": data,
                "algorithm": "sft",
                "scheduler": "constant",
                "adapter": adapter,
                "train": {"max_steps": 6, "batch_size": 1, "learning_rate": 1e-2, "precision": "fp32", **train},
                "output": str(output),
            }
        )
    )
    return recorded(output).trained


def weights(folder):
    (file,) = folder.glob("*.safetensors")
    return load_file(file)


def changed(folder, base):
    """Return the parts whose weights differ between two folders."""
    before, after = (AutoModelForImageTextToText.from_pretrained(path).state_dict() for path in (base, folder))
    return {part(name) for name, weight in before.items() if not torch.equal(weight, after[name])}


def test_full_training_of_a_tower_goes_on_exactly_and_is_quantized_beside(model, rows, tmp_path):
    """One row has no image: a step of it alone moves nothing, for the language model is frozen."""
    made = run("qwen2_5_vl", model, rows, tmp_path / "whole", {"name": "full", **TOWER})
    for steps in (3, 6):
        run("qwen2_5_vl", model, rows, tmp_path / "parted", {"name": "full", **TOWER}, max_steps=steps)
    trained, parted = (weights(tmp_path / name / "model") for name in ("whole", "parted"))
    assert all(torch.equal(trained[name], parted[name]) for name in trained)
    assert changed(made.path, model("qwen2_5_vl")) == {"tower"}
    small = weights(RTN(bits=8, group_size=16).build().quantize(run=CONTEXT, artifact=made, into=tmp_path / "rtn").path)
    towers = {name for name in trained if "visual" in name}
    assert towers
    assert all(torch.equal(small[name], trained[name]) for name in towers)


def test_a_lora_of_all_parts_goes_on_exactly_and_is_merged_and_coded_as_a_delta(model, rows, tmp_path):
    adapter = {"name": "lora", "rank": 2, **ALL}
    made = run("llava", model, rows, tmp_path / "whole", adapter)
    for steps in (3, 6):
        run("llava", model, rows, tmp_path / "parted", adapter, max_steps=steps)
    whole, parted = (weights(tmp_path / name / "model") for name in ("whole", "parted"))
    assert all(torch.equal(whole[name], parted[name]) for name in whole)
    before = weights(model("llava"))
    delta = BitDelta(distill_steps=0).build().quantize(run=CONTEXT, artifact=made, into=tmp_path / "delta")
    for artifact in (made, delta):
        after = dict(plain_model(artifact).weights)
        assert after.keys() == before.keys()
        moved = {name for name, weight in before.items() if not torch.equal(weight, after[name])}
        assert {part(name) for name in moved} == {"tower", "projector", "language"}
