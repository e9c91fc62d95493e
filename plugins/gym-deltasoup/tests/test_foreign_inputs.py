"""Directories that other libraries wrote, or that somebody broke: merged as what they are, or refused by name."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import gym_deltasoup as soup
from gym_adapters.lora_checkpoint import LoraFile, write_lora
from gym_core import GymError
from gym_deltasoup import Input, merge_artifacts
from gym_testkit.tiny import write_model


def quantized(path: Path, seed: int) -> Path:
    """Write a model whose linear layers are codes of 8 bits with a scale, as files of DeepSeek and Qwen have them."""
    write_model(path, seed)
    weights, found = load_file(path / "model.safetensors"), {}
    for name, weight in weights.items():
        if weight.dim() == 2 and ".layers." in name:
            scale = seed * weight.abs().max() / 448
            found |= {name: (weight / scale).to(torch.float8_e4m3fn), f"{name}_scale_inv": scale.reshape(1, 1)}
        else:
            found[name] = weight
    save_file(found, path / "model.safetensors", {"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (path / "config.json").write_text(json.dumps(config))
    return path


def test_codes_of_quantized_models_are_no_weights(tmp_path: Path) -> None:
    """The mean of codes beside the mean of their scales is not the mean of what they stand for."""
    models = [quantized(tmp_path / f"{seed}", seed) for seed in (1, 2)]
    with pytest.raises(GymError, match=r"is quantized \(fp8\)"):
        merge_artifacts(soup.UniformSoup(), [Input(each) for each in models], tmp_path / "made")
    with pytest.raises(GymError, match=r"is quantized \(fp8\)"):
        merge_artifacts(soup.UniformSoup(), [Input(models[0])], tmp_path / "made", base=str(models[1]))
    assert not (tmp_path / "made").exists()


LAYER = "model.layers.0.self_attn.q_proj"


def adapter(base: Path, into: Path, seed: int) -> Path:
    """Write a LoRA of one layer, as peft does."""
    draw = torch.Generator().manual_seed(seed)
    pair = {"lora_A": torch.randn(2, 32, generator=draw), "lora_B": torch.randn(32, 2, generator=draw)}
    return write_lora(into, str(base), LoraFile(2, 0.5, {LAYER: pair}))


def test_adapters_of_different_bases_are_refused_also_where_no_base_is_named(tmp_path: Path) -> None:
    base, other = (write_model(tmp_path / name, seed) for name, seed in (("base", 0), ("other", 1)))
    first = adapter(base, tmp_path / "first", 1)
    with pytest.raises(GymError, match=r"was trained from .*other, and .*first from .*base"):
        inputs = [Input(first), Input(adapter(other, tmp_path / "second", 2))]
        merge_artifacts(soup.UniformSoup(), inputs, tmp_path / "made")
    again = shutil.copytree(base, tmp_path / "again")  # the same weights in another folder are the same base
    inputs = [Input(first), Input(adapter(again, tmp_path / "third", 3))]
    assert merge_artifacts(soup.UniformSoup(), inputs, tmp_path / "made").artifact.base == str(base)
    inputs = [Input(adapter(Path("nobody/knows"), tmp_path / f"hub{seed}", seed)) for seed in (4, 5)]
    merge_artifacts(soup.UniformSoup(), inputs, tmp_path / "of-hub")


def test_a_broken_adapter_is_refused_by_name(tmp_path: Path) -> None:
    """Who merges what others sent is told whose file it is, and of what."""
    base = write_model(tmp_path / "base", 0)
    sound = Input(adapter(base, tmp_path / "sound", 1), "sound")

    def refused(match: str, broken: Path) -> None:
        with pytest.raises(GymError, match=match) as caught:
            merge_artifacts(soup.UniformSoup(), [sound, Input(broken, "broken")], tmp_path / "made")
        assert str(broken) in str(caught.value)

    options = ({"r": 0}, {"r": None}, {"r": "2"}, {"r": True}, {"lora_alpha": None}, {"lora_alpha": math.inf})
    for number, option in enumerate(options):
        path = adapter(base, tmp_path / f"option-{number}", 2)
        told = json.loads((path / "adapter_config.json").read_text())
        (path / "adapter_config.json").write_text(json.dumps(told | option))
        refused("scale nothing", path)
    for half, shape in (("lora_A", (5, 32)), ("lora_B", (32, 3)), ("lora_A", ())):
        path = adapter(base, tmp_path / f"{half}-{len(shape)}", 2)
        tensors = load_file(path / "adapter_model.safetensors")
        name = next(name for name in tensors if half in name)
        save_file(tensors | {name: torch.zeros(shape)}, path / "adapter_model.safetensors")
        refused("says `r` is 2", path)
    path = adapter(base, tmp_path / "cut", 2)
    (path / "adapter_model.safetensors").write_bytes(b"cut off")
    refused("is damaged", path)
