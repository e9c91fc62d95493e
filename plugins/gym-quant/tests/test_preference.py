"""DPO over quantized bases: policy and reference are of the same weights, whichever way the reference is held."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from gym_core import Artifact
from gym_quant import RTN
from gym_testkit.bench import Bench
from gym_testkit.caches import own_cache

WORDS = ("red", "green", "blue", "white", "black", "pink", "grey", "teal")
ROWS = [{"prompt": f"say {w}", "chosen": w * 2, "rejected": WORDS[n - 3]} for n, w in enumerate(WORDS)]
FORMS: dict[str, dict[str, Any]] = {
    "left out": {"precompute_ref_log_probs": False},
    "kept": {"precompute_ref_log_probs": True},
    "further": {"ref_model": "itself", "precompute_ref_log_probs": False},
}


@pytest.mark.parametrize("quantization", ["bnb_4bit", {"name": "hqq", "bits": 2}, None], ids=["bnb", "hqq", "of files"])
def test_all_forms_of_a_reference_are_one(quantization: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They begin at log 2 and train alike: quantized as it is loaded, or a checkpoint that a quantizer of ours wrote."""
    monkeypatch.setenv("GYM_CACHE", own_cache(tmp_path / "cache"))
    torch.set_num_threads(1)
    bench = Bench(tmp_path)
    base = bench.model_of(64, 128)
    model: dict[str, Any] = {"path": str(base)}
    if quantization:
        model |= {"quantization": quantization, "ref_model_quantization": quantization}
    else:
        made = RTN(bits=4, group_size=32).build().quantize(bench.trained(base), Artifact(base), tmp_path / "quantized")
        model["path"] = str(made.path)
    found = {}
    for form, options in FORMS.items():
        given = {key: model["path"] if value == "itself" else value for key, value in options.items()}
        recipe = bench.recipe({"name": "dpo", **given}, "preference", batch_size=4, learning_rate=0.003, max_steps=4)
        recipe |= {"model": model if form == "further" else {**model, "ref_model_quantization": None}}
        recipe |= {"data": str(bench.file(ROWS)), "adapter": "lora"}
        found[form] = bench.run(recipe, form.replace(" ", "-")).series("loss")
    first = found["left out"]
    assert first[0] == pytest.approx(0.6931472, abs=1e-6) and first[-1] < first[0] - 0.005
    for losses in found.values():
        assert losses == pytest.approx(first, abs=1e-5)


def test_what_a_quantized_reference_said_is_found_by_all_of_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two fine-tunes of one base share embeddings and norms, and two quantizers make other weights of the same."""
    monkeypatch.setenv("GYM_CACHE", own_cache(tmp_path / "cache"))
    bench = Bench(tmp_path)
    base = bench.model_of(64, 128)
    other = Path(shutil.copytree(base, tmp_path / "other"))
    weights = load_file(base / "model.safetensors")
    save_file({name: 3 * w if "mlp" in name else w for name, w in weights.items()}, other / "model.safetensors")
    for name, path, quantization in (
        ("first", base, "bnb_4bit"),
        ("weights", other, "bnb_4bit"),
        ("codec", base, "hqq"),
    ):
        recipe = bench.recipe(
            {"name": "dpo", "precompute_ref_log_probs": True}, "preference", batch_size=4, max_steps=1
        )
        recipe |= {"model": {"path": str(path), "quantization": quantization}, "adapter": "lora"}
        (loss,) = bench.run(recipe | {"data": str(bench.file(ROWS))}, name).series("loss")
        assert loss == pytest.approx(0.6931472, abs=1e-6), name


def test_a_reference_that_is_not_quantized_is_another_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step says so."""
    monkeypatch.setenv("GYM_CACHE", own_cache(tmp_path / "cache"))
    bench = Bench(tmp_path)
    base = bench.model_of(64, 128)
    algorithm = {"name": "dpo", "ref_model": str(shutil.copytree(base, tmp_path / "whole"))}
    recipe = bench.recipe(algorithm, "preference", batch_size=4, max_steps=1)
    recipe |= {"model": {"path": str(base), "quantization": {"name": "hqq", "bits": 2}}, "adapter": "lora"}
    (loss,) = bench.run(recipe | {"data": str(bench.file(ROWS))}, "run").series("loss")
    assert abs(loss - 0.6931472) > 1e-4
