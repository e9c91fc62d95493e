"""Contributions for tests: models and adapters that differ a little from a base, and how good they are."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from gym_adapters.lora_checkpoint import LoraFile, read_lora, write_lora
from gym_core import Artifact

LAYER = "model.layers.0.self_attn.q_proj"


def flat(path: Path) -> Tensor:
    """Return all weights of a model as a vector."""
    return torch.cat([weight.flatten().double() for _, weight in sorted(load_file(path / "model.safetensors").items())])


def good(base: Path) -> Tensor:
    """Return the change of the base that would be best."""
    draw = torch.Generator().manual_seed(99)
    return 0.01 * torch.randn(len(flat(base)), generator=draw, dtype=torch.float64)


def tuned(base: Path, into: Path, seed: int, toward: float = 1.0, noise: float = 0.005) -> Path:
    """Write a model that went some way toward the best one, and some way at random."""
    path = shutil.copytree(base, into)
    weights, best = load_file(path / "model.safetensors"), good(base)
    draw = torch.Generator().manual_seed(seed)
    begin = 0
    for name in sorted(weights):
        weight = weights[name]
        way = best[begin : begin + weight.numel()].view(weight.shape).float()
        begin += weight.numel()
        weights[name] = weight + toward * way + noise * torch.randn(weight.shape, generator=draw)
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    return path


def adapter(base: Path, into: Path, seed: int, size: float = 0.1) -> Path:
    """Write a LoRA of one layer."""
    draw = torch.Generator().manual_seed(seed)
    pair = {
        "lora_A": size * torch.randn(2, 32, generator=draw),
        "lora_B": size * torch.randn(32, 2, generator=draw),
    }
    return write_lora(into, str(base), LoraFile(2, 0.5, {LAYER: pair}))


def pulled(base: Path, into: Path, seed: int, toward: float = 1.0, noise: float = 0.05) -> Path:
    """Write a LoRA of one layer that went some way toward the best one, and some way at random; all share their factor A."""
    draw = torch.Generator().manual_seed(seed)
    half, best = _best()
    pair = {"lora_A": half, "lora_B": toward * best + noise * torch.randn(32, 2, generator=draw)}
    return write_lora(into, str(base), LoraFile(2, 1.0, {LAYER: pair}))


def lora_score(artifact: Artifact) -> float:
    """Return how good a LoRA is: 1 for the best one, 0.5 for the base without any."""
    half, best = _best()
    wanted, found = best @ half, torch.zeros(32, 32)
    if artifact.kind == "adapter":
        lora = read_lora(artifact.path)
        found = lora.scaling * lora.pairs[LAYER]["lora_B"] @ lora.pairs[LAYER]["lora_A"]
    return 1 / (1 + float((found - wanted).norm() / wanted.norm()))


def _best() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(99)
    return 0.1 * torch.randn(2, 32, generator=draw), 0.1 * torch.randn(32, 2, generator=draw)
