"""Directories that other libraries wrote, or that somebody broke: merged as what they are, or refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import gym_deltasoup as soup
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
