"""The mixture of experts that benchmarks measure on, and the process of its own that each measurement gets."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor
from transformers import Qwen3MoeConfig

VOCABULARY = 8192
Given, Made = ParamSpec("Given"), TypeVar("Made")


def shape(layers: int, experts: int) -> Qwen3MoeConfig:
    """Return a configuration of so many layers of so many experts, of which each token goes to two."""
    return Qwen3MoeConfig(
        vocab_size=VOCABULARY,
        hidden_size=512,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        num_experts=experts,
        num_experts_per_tok=2,
        moe_intermediate_size=384,
        tie_word_embeddings=True,
    )


def tokens(step: int, rows: int, length: int) -> Tensor:
    """Return the tokens `[rows, length]` of a step."""
    return torch.randint(0, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(step))


def alone(work: Callable[Given, Made], *args: Given.args, **options: Given.kwargs) -> Made:
    """Do some work in a fresh process, whose memory holds nothing else, and return what it returns."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(work, *args, **options).result()
