"""The whole method with a real worker: a tiny model, tuned by Gym, behind Gym's own server; the critic alone is scripted."""

from __future__ import annotations

import pytest
from scripted_server import ScriptedServer
from tuned_world import Critic, short_prompts, small, tasks, tuned

from gym_training_free import GRPOConfig, OpenAI, TrainingFreeGRPO

for package in ("gym_serve", "gym_sft", "gym_tiny"):
    pytest.importorskip(package)
KINDS = 3


def reward(answer, row):
    return float(answer.strip() == row["answer"])


def test_a_tuned_model_behind_gym_serve_learns_from_its_own_answers(tmp_path):
    """It rises by 30 points and more, with groups of one by none; the server needs a token and ends with the trainer."""
    prompts = short_prompts(tmp_path)
    model = tuned(small(tmp_path), tmp_path, 180 * 16, KINDS, prompts, batch_size=16, learning_rate=6e-3)
    with ScriptedServer(Critic()) as critic:
        config = GRPOConfig(
            group_size=4,
            max_epochs=1,
            batch_size=6,
            held_out=18,
            eval_samples=2,
            temperature_eval=0.7,
            max_new_tokens=4,
            prompts=prompts,
            critic=OpenAI(path="critic", base_url=critic.base_url),
        )
        with TrainingFreeGRPO(str(model), config, output=tmp_path / "learned") as trainer:
            library = trainer.train(tasks(30, KINDS), reward)
            server = trainer.model.server
            url = server.url()
            assert server.running
            stranger = TrainingFreeGRPO("model", config, url)
            with pytest.raises(Exception, match="does not accept the key"):
                stranger.infer("Who is there?")
            single = config.model_copy(update={"group_size": 1})
            alone = TrainingFreeGRPO("model", single, url, server.token).train(tasks(24, KINDS), reward)
        assert not server.running
    held = library.evidence["held_out"]
    assert held["new"] >= held["old"] + 0.3 and 0.1 < held["old"] < 0.6 and len(library) > 1
    assert len(alone) == 0
    files = [file.read_text() for file in (tmp_path / "learned").rglob("*") if file.is_file()]
    assert not any(server.token in text for text in files)
    assert library.provenance["models"]["model"]["endpoint"].startswith(f"gym-serve:{model}#")
