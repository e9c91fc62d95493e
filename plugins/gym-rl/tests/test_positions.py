"""Prompts and completions that are longer than the positions of a model: said before anything is sampled."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import GPT2Config, GPT2LMHeadModel

from gym_core import RecipeError
from gym_rl.rollouts import position_check
from gym_testkit.architectures import build
from gym_testkit.bench import Bench
from gym_torch.model import positions


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def recipe(bench: Bench, completion: int) -> dict[str, Any]:
    """Return a recipe for a model with a table of 64 positions, and prompts of 29 tokens at most."""
    path = bench.root / "gpt2"
    shutil.copytree(bench.model(), path)
    shape = GPT2Config(vocab_size=264, n_embd=32, n_head=4, n_layer=1, n_positions=64, bos_token_id=0, eos_token_id=0)
    GPT2LMHeadModel(shape).save_pretrained(path)
    options = {"rewards": [{"name": "regex", "pattern": "[a-m]"}], "max_new_tokens": completion, "group_size": 4}
    return bench.recipe({"name": "rloo", **options}, "prompt", max_steps=1) | {"model": str(path)}


def test_a_run_that_would_pass_the_table_is_refused_and_told_how_far_it_goes(bench: Bench) -> None:
    made = recipe(bench, 60)
    with pytest.raises(RecipeError, match=r"prompt has 29 tokens and .* the model has 64 positions") as raised:
        bench.run(made)
    assert "algorithm.max_new_tokens: " in str(raised.value) and "max_new_tokens: 35}" in str(raised.value)
    made["algorithm"]["max_new_tokens"] = 35
    assert len(bench.run(made, "again").metrics) == 1


def test_positions_that_are_computed_have_no_end() -> None:
    assert positions.table(build("llama")) is None
    assert positions.table(build("gpt2")) == 128
    position_check.check(build("llama"), 1000, 1000)
    with pytest.raises(RecipeError, match=r"data: \{cutoff: 118\}"):
        position_check.check(build("gpt2"), 128, 10)
