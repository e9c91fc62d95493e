"""A critic of its own over two processes: the numbers of one, although nobody asks for what its language-model head says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from gym_testkit.bench import Bench
from gym_testkit.team import start


def test_two_processes_share_a_critic(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    untied = shutil.copytree(bench.model(1), tmp_path / "untied")
    shape = AutoConfig.from_pretrained(untied, tie_word_embeddings=False)
    AutoModelForCausalLM.from_config(shape).save_pretrained(untied)
    rewards = [{"name": "length", "maximum": 2, "slack": 14}]
    ppo = {"name": "ppo", "critic": str(untied), "rewards": rewards, "max_new_tokens": 16}
    file = bench.path("recipe.yaml")
    file.write_text(json.dumps(bench.recipe(ppo, "prompt", batch_size=2, accumulate=4, max_steps=4)))
    lines = {}
    for world in (1, 2):
        team = start(world, str(file), f"output={tmp_path / str(world)}")
        assert team.codes() == [0] * world, team.errors()
        text = (tmp_path / str(world) / "metrics.jsonl").read_text()
        lines[world] = [json.loads(line) for line in text.splitlines()]
    for alone, shared in zip(lines[1], lines[2], strict=True):
        assert shared["reward"] == alone["reward"]
        for name in ("loss", "value_loss", "grad_norm"):
            assert shared[name] == pytest.approx(alone[name], rel=1e-4, abs=1e-5)
