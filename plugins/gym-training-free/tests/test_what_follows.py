"""What a run that goes on follows from: counts of tokens and costs of rounds."""

from __future__ import annotations

import json

import pytest
from scripted_server import ScriptedServer
from simulated_world import World, exact, rows

from gym_rewards.builtin.length import Length
from gym_training_free import GRPOConfig, TrainingFreeGRPO

CONFIG = GRPOConfig(group_size=3, max_epochs=2, batch_size=5, held_out=0, max_new_tokens=32, critic_max_new_tokens=64)
QUICK = {"timeout": 20, "backoff": 0.001, "concurrency": 4}


@pytest.fixture(autouse=True)
def no_disk(monkeypatch):
    monkeypatch.setattr("gym_training_free.endpoint.journal.os.fsync", lambda file: None)


def train(server, output, reward=exact, config=CONFIG, **further):
    return TrainingFreeGRPO("m", config, server.base_url, output=output, **QUICK | further).train(rows(10), reward)


def test_a_length_is_the_same_when_a_run_goes_on(tmp_path):
    """A reward of length counts the tokens that the server counted, also of a reply that the journal brings back."""
    reward = Length(maximum=8, slack=100)
    with ScriptedServer(World()) as server:
        train(server, tmp_path / "whole", reward)
        lines = (tmp_path / "whole/journal.jsonl").read_text().splitlines(keepends=True)
        before = next(place for place, line in enumerate(lines) if "noted" in json.loads(line))
        again = tmp_path / "again"
        again.mkdir()
        (again / "journal.jsonl").write_text("".join(lines[:before]))  # killed before the first batch was judged
        train(server, again, reward)
    scores = [
        next(json.loads(line)["value"] for line in (folder / "journal.jsonl").open() if "noted" in json.loads(line))
        for folder in (tmp_path / "whole", again)
    ]
    assert scores[0] == scores[1] and min(reward for reward, _ in scores[0]) < 1


def test_a_round_costs_the_same_when_a_run_goes_on(tmp_path):
    """What the run had cost by the end of a round is not what it has cost by now."""
    with ScriptedServer(World()) as server:
        train(server, tmp_path, price={"input": 1, "output": 2})
        first = (tmp_path / "rounds.jsonl").read_text(), (tmp_path / "metrics.jsonl").read_text()
        train(server, tmp_path, price={"input": 1, "output": 2})
        assert ((tmp_path / "rounds.jsonl").read_text(), (tmp_path / "metrics.jsonl").read_text()) == first
    costs = [json.loads(line)["cost"] for line in first[0].splitlines()]
    assert costs == sorted(set(costs))
