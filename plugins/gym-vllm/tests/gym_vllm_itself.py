"""vLLM itself, where it is: `GYM_VLLM` names a Python that has it, as `nox -s vllm` does."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from transformers import AutoModelForCausalLM

from gym_data.location import locate
from gym_testkit.bench import Bench

PYTHON = os.environ.get("GYM_VLLM", "")
KEY = "GYM_VLLM_TEST_KEY"
#: what `vllm serve` does; the command itself asks for a distribution of another name than that for processors has
COMMAND = """#!/bin/sh
shift; model=$1; shift
export VLLM_CPU_KVCACHE_SPACE=1 HF_HUB_OFFLINE=1
exec '{python}' -m vllm.entrypoints.openai.api_server --enforce-eager --model "$model" "$@"
"""


class Packaged(Bench):
    """Its model is the packaged one: vLLM has no attention of 8 numbers a head on processors, as the random one has."""

    def model(self, seed: int = 0) -> Path:
        return locate("tiny")


class Untied(Packaged):
    """Its model has a head of its own: on processors vLLM packs a tied one once, and does not when it is given new weights."""

    def model(self, seed: int = 0) -> Path:
        path = self.root / "untied"
        if not path.exists():
            shutil.copytree(super().model(), path)
            model = AutoModelForCausalLM.from_pretrained(path, tie_word_embeddings=False)
            model.lm_head.weight.data.copy_(model.model.embed_tokens.weight.data)
            model.save_pretrained(path)
        return path
