"""What a run that goes on follows from: counts of tokens, costs of rounds, and calls that nobody answered."""

from __future__ import annotations

import json
import re

import pytest
from scripted_server import ScriptedServer
from simulated_world import World, exact, rows

from gym_core import GymError
from gym_rewards.builtin.length import Length
from gym_training_free import GRPOConfig, OpenAI, TrainingFreeGRPO
from gym_training_free.judge_reward import Judge

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


def test_a_judge_whose_price_nobody_knows_is_named_when_a_run_goes_on(tmp_path):
    """Its grades stand in the journal: nobody asks it again, and yet no sum is all that was spent."""
    with ScriptedServer(World()) as server:
        judge = Judge(model=OpenAI(path="j", base_url=server.base_url, **QUICK))
        for _ in range(2):
            library = train(server, tmp_path, judge, price={"input": 1, "output": 2})
            assert (
                library.evidence["unpriced"] == ["j"] and "price of j unknown" in (tmp_path / "report.html").read_text()
            )


def test_a_second_turn_that_nobody_answers_is_asked_again(tmp_path):
    """Such as where a server takes no messages of tools: once it does, the run goes on."""
    call = {"tool_calls": [{"id": "1", "function": {"name": "calculator", "arguments": '{"expression": "1"}'}}]}
    world = World()

    def answer(request):
        if World.role(request) != "worker":
            return world(request)
        asked = [one for one in request["messages"] if one["role"] != "tool" and not one.get("tool_calls")]
        return (
            {"content": None, **call}
            if request["messages"][-1]["role"] == "user"
            else world(request | {"messages": asked})
        )

    def fault(request, attempt):
        return "status 400" if request["messages"][-1]["role"] == "tool" else ""

    config = CONFIG.model_copy(update={"tools": ("calculator",), "max_epochs": 1, "batch_size": 2, "group_size": 2})
    with ScriptedServer(answer, fault) as server:
        for _ in range(2):
            with pytest.raises(GymError, match="no answer to a whole batch: status 400"):
                train(server, tmp_path, config=config)
        server.fault = lambda request, attempt: ""
        train(server, tmp_path, config=config)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (402, {"error": {"message": "Insufficient Balance", "code": "invalid_request_error"}}),
        (429, {"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}),
        (429, {"error": {"message": "You exceeded your current quota", "type": "insufficient_quota"}}),
    ],
)
def test_an_account_that_is_empty_stops_a_run_and_loses_nothing(tmp_path, status, body):
    """In the middle of a batch: once it is filled, the run ends as one that was never stopped."""
    with ScriptedServer(World()) as server:
        whole, once = train(server, tmp_path / "whole"), server.counted["replies"]
        plain, stop = server.RequestHandlerClass, once + 7

        def complete(self, request, fault):
            if self.server.counted["replies"] >= stop:
                self.reply(status, body)
            else:
                plain.complete(self, request, fault)

        server.RequestHandlerClass = type("Poor", (plain,), {"complete": complete})
        with pytest.raises(GymError, match="nothing left") as stopped:
            train(server, tmp_path / "poor")
        assert re.search(r"[Bb]alance|quota", str(stopped.value))
        server.RequestHandlerClass = plain
        assert train(server, tmp_path / "poor") == whole and server.counted["replies"] == 2 * once


def test_a_critic_that_is_down_stops_a_run(tmp_path):
    """Answers are paid for; without a critic nothing follows from them, so they wait in the journal until it is there."""
    with ScriptedServer(World()) as server, ScriptedServer(World()) as other:
        critic = OpenAI(path="c", base_url=other.base_url, retries=1, **QUICK)
        config = CONFIG.model_copy(update={"critic": critic})
        other.fault = lambda request, attempt: "status 503"
        with pytest.raises(GymError, match=r"no answer to (a whole batch|8 calls in a row): status 503") as stopped:
            train(server, tmp_path, config=config)
        assert other.base_url in str(stopped.value)
        asked, other.fault = len(server.requests), lambda request, attempt: ""
        assert len(train(server, tmp_path, config=config)) > 3
        assert len(server.requests) == 2 * 10 * 3 and asked == 5 * 3


@pytest.mark.parametrize("role", ["worker", "judge"])
def test_a_server_that_goes_down_is_no_harm_of_a_library_and_no_grade(tmp_path, role):
    """While a change is measured, or answers are graded: the run stops, and goes on as one that was never stopped."""

    def fault(request, attempt):
        changed = role == "judge" or "[E" in json.dumps(request["messages"])
        return "status 503" if World.role(request) == role and changed else ""

    with ScriptedServer(World()) as server:
        judge = Judge(model=OpenAI(path="j", base_url=server.base_url, retries=0, **QUICK))
        config = CONFIG.model_copy(update={"held_out": 5, "batch_size": 15, "max_epochs": 1})

        def trained(folder):
            options = {"output": tmp_path / folder, "retries": 0, **QUICK}
            return TrainingFreeGRPO("m", config, server.base_url, **options).train(rows(20), judge)

        whole, server.fault = trained("whole"), fault
        with pytest.raises(GymError, match=r"no answer to (a whole batch|8 calls in a row): status 503"):
            trained("down")
        server.fault = lambda request, attempt: ""
        assert trained("down") == whole and len(whole) > 3


@pytest.mark.parametrize("role", ["worker", "summary"])
def test_a_server_that_goes_down_in_a_batch_loses_none_of_it(tmp_path, role):
    """Some were answered, and then nobody is: the run stops after a few calls, and goes on as one that was never stopped."""
    with ScriptedServer(World()) as server:
        whole, once = train(server, tmp_path / "whole"), server.counted["replies"]
        down = []

        def fault(request, attempt):
            if down or (World.role(request) == role and server.counted["replies"] >= once + 4):
                down.append(request)
                return "status 503"
            return ""

        server.fault = fault
        with pytest.raises(GymError, match="no answer to 8 calls in a row: status 503"):
            train(server, tmp_path / "down", retries=1)
        assert 8 * 2 <= len(down) <= (8 + 2 * 4) * 2
        server.fault = lambda request, attempt: ""
        assert train(server, tmp_path / "down") == whole and server.counted["replies"] == 2 * once
