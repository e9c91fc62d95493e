"""Tenants of the 30M model of `peers.shape` with random deltas, and one peer that adds dense deltas row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from gym_bitdelta.delta import file, records
from gym_bitdelta.delta.header import Dense, LowRank
from peers.shape import SHAPE, SMALL

BASE = "0" * 64
RANK = 16


def base(dtype: torch.dtype) -> PreTrainedModel:
    """Return the model with random weights, the same ones each time."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(**SHAPE, vocab_size=SMALL)
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").to(dtype).eval().requires_grad_(False)


def matrices(model: PreTrainedModel) -> dict[str, torch.Size]:
    """Return the shapes of the weights of all linear layers but the head."""
    return {name: weight.shape for name, weight in model.named_parameters() if weight.dim() == 2 and "layers" in name}


def dense(model: PreTrainedModel, seed: int) -> file.Delta:
    """Return a delta of one bit."""
    draws, found = torch.Generator().manual_seed(seed), {}
    for name, weight in model.named_parameters():
        if weight.dim() == 1:
            found[name] = records.raw(torch.randn(weight.shape, generator=draws) * 0.01)
    for name, shape in matrices(model).items():
        entry = Dense(shape=tuple(shape), code="signs", scales="rank1")
        counts = entry.counts()
        codes = torch.randint(0, 256, (counts["codes"],), dtype=torch.uint8, generator=draws)
        scales = (torch.rand(counts["scales"], generator=draws) + 0.5).half()
        found[name] = records.Record(entry, {"gains": torch.tensor([2e-3]), "scales": scales, "codes": codes})
    return file.made(BASE, found, {}, {})


def low_rank(model: PreTrainedModel, seed: int) -> file.Delta:
    """Return a delta of rank 16 in one and two bits."""
    draws, found = torch.Generator().manual_seed(seed), {}
    for name, shape in matrices(model).items():
        entry = LowRank(shape=tuple(shape), rank=RANK, leading=RANK // 2)
        counts = entry.counts()
        codes = torch.randint(0, 256, (counts["codes"],), dtype=torch.uint8, generator=draws)
        scales = (torch.rand(counts["scales"], generator=draws) + 0.5).half()
        found[name] = records.Record(entry, {"gains": torch.tensor([1e-3]), "scales": scales, "codes": codes})
    return file.made(BASE, found, {}, {})


class Folder:
    """Deltas on disk, by the names of their tenants."""

    def __init__(self, path: Path) -> None:
        """Use an empty folder."""
        self.path = path

    def write(self, name: str, delta: file.Delta) -> None:
        """Write one."""
        file.write(self(name), delta)

    def __call__(self, name: str) -> Path:
        """Return where it is."""
        return self.path / f"{name}.safetensors"


def plus_dense(model: PreTrainedModel, changes: Sequence[Mapping[str, Tensor]]) -> PreTrainedModel:
    """Let a model, whose norms are ones, add to row i the product of its dense changes, one row after another."""

    def linear_hook(name: str, _module: nn.Module, given: tuple[Tensor, ...], found: Tensor) -> Tensor:
        for row, change in enumerate(changes):
            found[row] += linear(given[0][row], change[name])
        return found

    def norm_hook(weight: Tensor, _module: nn.Module, given: tuple[Tensor, ...], found: Tensor) -> Tensor:
        return found * (1 + weight.view(len(changes), *(1,) * (found.dim() - 2), -1))

    for name, weight in model.named_parameters():
        module = model.get_submodule(name.removesuffix(".weight"))
        if weight.dim() == 1:
            module.register_forward_hook(partial(norm_hook, torch.stack([change[name] for change in changes])))
        elif "layers" in name:
            module.register_forward_hook(partial(linear_hook, name))
    return model
