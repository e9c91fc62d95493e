"""Providers that take no `temperature` or `seed`: they are asked without, which is said once and kept for the run."""

from __future__ import annotations

import json
import logging

import pytest
from scripted_server import ScriptedServer
from simulated_world import World, exact, rows

from gym_rewards.reward import RewardInput
from gym_training_free import ExperienceLibrary, GRPOConfig, OpenAI, TrainingFreeGRPO
from gym_training_free.endpoint.caller import Caller
from gym_training_free.endpoint.chat import ChatRequest
from gym_training_free.endpoint.journal import Journal, Key
from gym_training_free.endpoint.ledger import Ledger
from gym_training_free.judge_reward import Judge
from gym_training_free.open_endpoint import endpoint

CONFIG = GRPOConfig(group_size=3, max_epochs=1, batch_size=4)
QUICK = {"timeout": 20, "backoff": 0.001, "concurrency": 4, "retries": 0}
ASKED = ChatRequest([{"role": "user", "content": "hello"}], 8, 0.7, 0.9, 5)


def refusing(*names):
    """Return a fault: the first of these parameters that a request holds."""
    return lambda request, attempt: next((f"refuses {name}" for name in names if name in request), "")


def train(server, output=None):
    return TrainingFreeGRPO("m", CONFIG, server.base_url, output=output, **QUICK).train(rows(9), exact)


def call(server, request=ASKED):
    ledger = Ledger()
    with Caller(Journal(None, {}), ledger, 1) as calls:
        reply = calls.call(endpoint(OpenAI(path="m", base_url=server.base_url, **QUICK)), Key(0, 0, 0, 0, "r"), request)
    return reply, ledger


def test_what_is_refused_is_left_out_said_once_and_costs_nothing(caplog):
    with ScriptedServer(World(), refusing("seed", "temperature")) as server:
        library = train(server)
        kept = [request for request in server.requests if not {"seed", "temperature"} & request.keys()]
        used = library.evidence["confirmed"]["usage"]
        assert len(kept) == server.counted["replies"] > 20 and used["input"] + used["output"] == server.total
        assert len(server.requests) - len(kept) <= 2 * QUICK["concurrency"], "it was remembered"
        assert all("top_p" in request for request in kept if World.role(request) == "worker")
    assert library.evidence["unconfirmed"]["calls"] == 0
    assert library.evidence["left_out"] == {f"m at {server.base_url}": ["seed", "temperature"]}
    said = [one.getMessage() for one in caplog.records if "left out" in one.getMessage()]
    assert len(said) == 2 and "`seed`" in said[0] and "`temperature`" in said[1]


def test_a_run_that_goes_on_knows_it_from_its_journal(tmp_path, caplog):
    with ScriptedServer(World(), refusing("temperature")) as server:
        whole = train(server, tmp_path)
        lines = (tmp_path / "journal.jsonl").read_text().splitlines()
        assert sum("left_out" in json.loads(line) for line in lines) == 1
        cut = [number for number, line in enumerate(lines) if "sent" in json.loads(line)][40]
        (tmp_path / "journal.jsonl").write_text("".join(f"{line}\n" for line in lines[:cut]))
        server.requests.clear()
        caplog.clear()
        assert train(server, tmp_path) == whole
        assert server.requests and not any("temperature" in request for request in server.requests)
        assert "refuses" not in caplog.text, "it was said before"
        assert train(server, tmp_path).evidence["left_out"] == whole.evidence["left_out"]
    assert "temperature" in (tmp_path / "report.html").read_text()
    assert ExperienceLibrary.read(tmp_path).evidence["left_out"]


@pytest.mark.parametrize(
    ("status", "reply", "left"),
    [
        (400, {"error": {"message": "Unsupported parameter: 'seed'.", "param": "seed"}}, {"seed"}),
        (400, {"error": {"message": "temperature and top_p cannot both be set"}}, {"top_p"}),
        (422, {"detail": [{"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "not permitted"}]}, {"seed"}),
        (400, "Unrecognized request argument supplied: seed", {"seed"}),
        (400, {"message": "`top_p` is deprecated for this model."}, {"top_p"}),
    ],
)
def test_however_a_provider_names_it(status, reply, left):
    with ScriptedServer(lambda request: "yes") as server:
        handler = server.RequestHandlerClass
        plain = handler.complete

        def complete(self, request, fault):
            plain(self, request, fault) if not left & request.keys() else self.reply(status, reply)

        server.RequestHandlerClass = type("Refusing", (handler,), {"complete": complete})
        found, ledger = call(server)
    assert found.text == "yes" and len(server.requests) == 2
    assert server.requests[0].keys() - server.requests[1].keys() == left
    assert ledger.spent.usage.total == server.total


@pytest.mark.parametrize(
    "reply",
    [
        {"error": {"message": "The prompt is too long: 'what temperature has the sea, and which seed'"}},
        {"error": {"message": "temperature is fine", "param": "messages"}},
        {"error": ["temperature"]},
        {"error": {"param": {"temperature": 1}}},
        [["seed"]],
        "[" * 1900,
        "",
    ],
)
def test_a_refusal_of_something_else_leaves_the_next_call_as_it_is(reply):
    """What a server repeats of the prompt is no refusal: only a request that is answered without a parameter shows one."""
    with ScriptedServer(lambda request: "yes") as server:
        handler = server.RequestHandlerClass
        plain = handler.complete

        def complete(self, request, fault):
            plain(self, request, fault) if "fine" in str(request["messages"]) else self.reply(400, reply)

        server.RequestHandlerClass = type("Odd", (handler,), {"complete": complete})
        model = endpoint(OpenAI(path="m", base_url=server.base_url, **QUICK))
        with Caller(Journal(None, {}), Ledger(), 1) as calls:
            assert calls.call(model, Key(0, 0, 0, 0, "r"), ASKED) is None
            assert len(server.requests) <= 4
            fine = ChatRequest([{"role": "user", "content": "fine"}], 8, 0.7, 0.9, 5)
            assert calls.call(model, Key(0, 0, 1, 0, "r"), fine).text == "yes"
        assert {"temperature", "top_p", "seed"} <= server.requests[-1].keys()


def test_a_judge_with_an_account_of_its_own_remembers_too(caplog):
    answers = [RewardInput("5", {"answer": "5"}, [{"role": "user", "content": "3 + 2?"}])]
    with ScriptedServer(World(), refusing("temperature")) as server:
        judge = Judge(model=OpenAI(path="j", base_url=server.base_url, **QUICK)).build()
        assert judge(answers) == judge(answers) == [1.0]
        assert ["temperature" in request for request in server.requests] == [True, False, False]
    assert len(caplog.records) == 1


def test_the_line_of_a_journal_names_no_key(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    secret = "sk-planted/refused"
    with ScriptedServer(World(), refusing("seed"), key=secret) as server:
        config = CONFIG.model_copy(update={"held_out": 0})
        TrainingFreeGRPO("m", config, server.base_url, secret, output=tmp_path, **QUICK).train(rows(4), exact)
    everything = [caplog.text, *(file.read_text() for file in tmp_path.rglob("*") if file.is_file())]
    assert any("left_out" in text for text in everything) and not any(secret in text for text in everything)
