"""The model that the benchmarks share, with random weights, and the precisions that are worth measuring here."""

from __future__ import annotations

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from gym_torch.kernels import precision_probe
from peers.shape import SHAPE, SMALL

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}


def random_model() -> PreTrainedModel:
    """Return the model of 30M parameters in fp32, always the same one, as it is to generate."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(**SHAPE, vocab_size=SMALL)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    return model.eval()


def precisions() -> list[str]:
    """Return fp32 and, where this machine is faster with it, bf16."""
    return ["fp32", *({precision_probe.trial(SHAPE["hidden_size"]).precision} - {"fp32"})]
