"""The client: what it sends and reads, faults, retries, caps and the ledger, on a real server in this process."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time

import pytest
from pydantic import ValidationError
from scripted_server import FAULTS, ScriptedServer
from simulated_world import World, exact, rows

from gym_core.errors import GymError
from gym_training_free import OpenAI, Price
from gym_training_free.endpoint.caller import Caller
from gym_training_free.endpoint.chat import ChatRequest
from gym_training_free.endpoint.journal import Journal, Key
from gym_training_free.endpoint.ledger import CapReached, Charge, Ledger, Usage
from gym_training_free.endpoint.price import listed
from gym_training_free.open_endpoint import endpoint

HELLO = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say \u201ehello\u201c."}]
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


def model(server, key="", **options):
    quick = {"timeout": 20, "backoff": 0.001, "retries": 4, "concurrency": 64, "price": Price(input=1, output=2)}
    return endpoint(OpenAI(path="m", base_url=server.base_url, **(quick | options)), key=key)


def caller(ledger=None, journal=None, concurrency=64):
    return Caller(journal or Journal(None, {}), ledger or Ledger(), concurrency)


def request(number=0, most=64):
    return ChatRequest([*HELLO[:1], {"role": "user", "content": f"Number {number}"}], most)


def key(number=0, role="rollout"):
    return Key(0, 0, number, 0, role)


def test_the_official_client_and_ours_say_and_hear_the_same():
    import openai  # takes its time

    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}

    def answer(asked):
        return {"content": "Let me see.", "tool_calls": [call]} if asked.get("tools") else "hello"

    with ScriptedServer(answer, key="k1") as server:
        client = openai.OpenAI(base_url=server.base_url, api_key="k1", max_retries=0)
        for tools in ([], [WEATHER]):
            asked = ChatRequest(HELLO, 32, 0.7, 0.9, 5, tuple(tools))
            ours = model(server, "k1").ask(asked)
            extra = {"tools": tools} if tools else {}
            theirs = client.chat.completions.create(
                model="m", messages=HELLO, max_tokens=32, temperature=0.7, top_p=0.9, seed=5, **extra
            )
            assert server.requests[-1] == server.requests[-2]
            said = theirs.choices[0].message
            assert ours.text == said.content
            assert [(one.id, one.name, one.arguments) for one in ours.tool_calls] == [
                (one.id, one.function.name, one.function.arguments) for one in said.tool_calls or ()
            ]
            assert ours.usage == Usage(theirs.usage.prompt_tokens, theirs.usage.completion_tokens)
        vectors, usage = model(server, "k1").embed(["abc", "b"])
        found = client.embeddings.create(model="m", input=["abc", "b"], encoding_format="float")
        assert vectors == [one.embedding for one in found.data] and usage.input == found.usage.prompt_tokens


def test_what_a_gateway_lost_may_have_been_counted():
    """A server behind it went on after the gateway had given up: the largest cost stays in the ledger."""
    ledger = Ledger()
    faults = ["status 502", "status 504", "status 524", "status 503", ""]
    with (
        ScriptedServer(lambda asked: "yes", lambda asked, attempt: faults[attempt - 1]) as server,
        caller(ledger) as calls,
    ):
        assert calls.call(one := model(server), key(), request()).text == "yes"
    assert ledger.lost == sum([one.most(request())] * 3, Charge()) and ledger.confirmed.calls == 1


@pytest.mark.parametrize("fault", FAULTS)
def test_what_may_pass_is_asked_again_and_counted(fault):
    ledger = Ledger()
    with ScriptedServer(lambda asked: "yes", lambda asked, attempt: fault if attempt < 3 else "") as server:
        with caller(ledger) as calls:
            reply = calls.call(one := model(server, timeout=0.5 if fault == "timeout" else 20), key(), request())
        assert reply.text == "yes"
        again = fault != "no usage"
        assert len(server.requests) == (3 if again else 1)
        counted = 0 if fault.startswith("status") else 2 if again else 1
        assert ledger.lost == sum([one.most(request())] * counted, Charge())
        assert ledger.confirmed.calls == again
        assert ledger.spent.usage.total >= server.total
        assert ledger.spent.usage.total - server.total <= counted * one.most(request()).usage.total


def test_what_never_passes_is_no_answer_and_no_exception():
    with ScriptedServer(lambda asked: "yes", lambda asked, attempt: "status 503") as server, caller() as calls:
        assert calls.call(model(server, retries=2), key(), request()) is None
        assert len(server.requests) == 3
    with ScriptedServer(lambda asked: "yes", lambda asked, attempt: "status 400") as server, caller() as calls:
        assert calls.call(model(server), key(), request()) is None  # such as a prompt that is too long: only this one
        assert len(server.requests) == 1


def test_the_server_says_how_long_to_wait():
    with ScriptedServer(lambda asked: "yes", lambda asked, attempt: "status 429" if attempt == 1 else "") as server:
        server.retry_after = "1"
        with caller() as calls:
            began = time.monotonic()
            assert calls.call(model(server), key(), request()).text == "yes"
            assert 0.9 < time.monotonic() - began < 3


@pytest.mark.parametrize("status", [301, 307, 401, 403, 404])
def test_what_will_never_work_stops_the_run_at_once(status):
    with ScriptedServer(lambda asked: "yes", lambda asked, attempt: f"status {status}") as server, caller() as calls:
        one = model(server, "planted-key")
        with pytest.raises(GymError) as refused:
            calls.map(lambda number: calls.call(one, key(number), request(number)), range(500))
        assert len(server.requests) <= 2 * 64 and calls.ledger.spent == Charge()
        assert "planted-key" not in str(refused.value)


def test_a_redirect_is_not_followed_and_the_key_stays():
    with ScriptedServer(lambda asked: "stolen") as thief:
        with ScriptedServer(lambda asked: "yes", lambda asked, attempt: "status 307") as server:
            handler = type("Redirects", (server.RequestHandlerClass,), {})
            handler.end_headers = lambda self: (
                self.send_header("Location", thief.base_url + "/chat/completions"),
                super(handler, self).end_headers(),
            )
            server.RequestHandlerClass = handler
            with pytest.raises(GymError, match="redirects to"):
                model(server, "planted-key").ask(request())
        assert not thief.requests


def test_five_hundred_calls_at_once_with_faults():
    """Every reply arrives in its place; the ledger is above the server's sum by the calls that brought no count alone.

    A machine without time to spare adds timeouts of its own to those of the script.
    """

    def fault(asked, attempt):
        number = int(asked["messages"][1]["content"].split()[1])
        return (*FAULTS[:6], *[""] * 14)[(number * 7 + attempt * 3) % 20] if attempt < 5 else ""

    ledger = Ledger()

    def answer(asked):
        return asked["messages"][1]["content"].replace("Number", "Reply")

    with ScriptedServer(answer, fault) as server, caller(ledger, concurrency=500) as calls:
        one = model(server, timeout=6, retries=20)
        replies = calls.map(lambda number: calls.call(one, key(number), request(number)), range(500))
        assert [reply.text for reply in replies] == [f"Reply {number}" for number in range(500)]
        assert server.most_at_once > 20
        least = ledger.confirmed.usage.total
        assert least <= server.total <= ledger.spent.usage.total
        assert ledger.confirmed.calls == 500
        assert ledger.lost.calls >= server.counted["replies"] - 500 > 50
        planned = [one.most(request(n)).usage.total * _lost(fault, n) for n in range(500)]
        further = ledger.lost.calls - sum(_lost(fault, n) for n in range(500))
        dearest = one.most(request(499)).usage.total
        assert 0 <= ledger.lost.usage.total - sum(planned) <= further * dearest


def _lost(fault, number):
    """Return how many attempts at a call brought no count."""
    asked, lost = {"messages": [None, {"content": f"Number {number}"}]}, 0
    for attempt in range(1, 8):
        said = fault(asked, attempt)
        if not said:
            return lost
        lost += not said.startswith("status")
    return lost


def test_each_server_is_asked_as_many_at_a_time_as_it_takes():
    """A critic that takes many does not have the worker asked as often."""
    from gym_training_free import GRPOConfig, TrainingFreeGRPO

    world = World()

    def slow(asked):
        time.sleep(0.03)
        return world(asked)

    with ScriptedServer(slow) as worker, ScriptedServer(slow) as critic:
        config = GRPOConfig(max_epochs=1, held_out=0, critic=OpenAI(path="c", base_url=critic.base_url, concurrency=16))
        TrainingFreeGRPO("m", config, worker.base_url, concurrency=2).train(rows(10), exact)
    assert worker.most_at_once <= 4 < critic.most_at_once  # a reply is sent before the server counts it as gone


@pytest.mark.parametrize("cap", [{"max_tokens": 20_000}, {"max_cost": 0.02}])
def test_a_cap_is_never_passed_and_what_fits_is_used(cap):
    ledger = Ledger(**cap)
    with ScriptedServer(lambda asked: "yes" * 20) as server, caller(ledger) as calls:
        one = model(server)
        with pytest.raises(CapReached, match="are spent"):
            calls.map(lambda number: calls.call(one, key(number), request(number)), range(2000))
        most = one.most(request(1999))
        spent = ledger.spent
        assert spent.usage.total == server.total and ledger.lost == Charge()
        if "max_tokens" in cap:
            assert cap["max_tokens"] - most.usage.total <= spent.usage.total <= cap["max_tokens"]
        else:
            assert cap["max_cost"] - most.cost <= spent.cost <= cap["max_cost"]


def test_a_cap_holds_among_faults():
    """Retries count as well: what a dropped reply may have cost is no room for another call."""
    ledger = Ledger(max_tokens=40_000)
    faults = ("dropped", "malformed", "half", "status 429", "status 500")
    with (
        ScriptedServer(
            lambda asked: "yes" * 20, lambda asked, attempt: faults[attempt - 1] if attempt < 4 else ""
        ) as server,
        caller(ledger) as calls,
    ):
        one = model(server)
        with pytest.raises(CapReached):
            calls.map(lambda number: calls.call(one, key(number), request(number)), range(500))
        assert server.total <= ledger.spent.usage.total <= 40_000
        assert ledger.lost.calls == server.counted["replies"] - ledger.confirmed.calls > 20


def test_what_a_local_server_is_told_in_place_of_a_key_is_no_secret():
    with ScriptedServer(lambda asked: "The set is EMPTY.", key="EMPTY") as server:
        assert model(server, "EMPTY").ask(request()).text == "The set is EMPTY."


@pytest.fixture
def interruptible():
    """Have SIGINT raise, also where the tests were started in the background, for such processes ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_waits_for_no_reply(tmp_path, interruptible):
    journal = Journal(tmp_path / "j", {})
    with (
        ScriptedServer(lambda asked: "yes", lambda asked, attempt: "timeout") as server,
        caller(journal=journal) as calls,
    ):
        one = model(server, timeout=60)

        def press():
            while len(server.requests) < 8:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=press).start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            calls.map(lambda number: calls.call(one, key(number), request(number)), range(8))
        assert time.monotonic() - began < 10
    journal.close()
    again = Journal(tmp_path / "j", {})
    assert again.lost.calls == 8
    again.close()


def test_a_call_waits_while_others_may_leave_enough():
    ledger = Ledger(max_tokens=100)
    order = []
    with ledger.reserve(Charge(Usage(60, 30), 0, 1)) as first:

        def second():
            with ledger.reserve(Charge(Usage(50, 0), 0, 1)) as found:
                order.append("sent")
                found.settle(Charge(Usage(1, 0), 0, 1))

        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.05)
        assert not order
        first.settle(Charge(Usage(20, 10), 0, 1))
    thread.join(5)
    assert order and ledger.spent.usage == Usage(21, 10)


def test_prices_come_from_a_table_and_not_from_a_paper():
    """38 M and 6.6 M tokens, as the paper's run used, at the list price of its model; with a cache that holds most of it."""
    price = listed("deepseek/v3.1-terminus")
    assert price.of(Usage(38_000_000, 6_600_000)) == pytest.approx(38 * 0.56 + 6.6 * 1.68)
    assert price.of(Usage(38_000_000, 6_600_000, 38_000_000)) == pytest.approx(38 * 0.07 + 6.6 * 1.68)
    assert listed("no-such-model") is None
    for address in (None, "http://localhost:4000/v1", "https://example.org/v1"):  # one on this machine may pass them on
        assert not endpoint(OpenAI(path="no-such-model", base_url=address)).priced
        assert endpoint(OpenAI(path="openai/gpt-4o", base_url=address)).price == listed("gpt-4o")
    with pytest.raises(ValidationError, match="more than"):
        Price(input=1, output=1, cached_input=2)


def test_the_largest_cost_bounds_the_prompt_by_its_bytes():
    with ScriptedServer(lambda asked: "yes") as server:
        one = model(server)
        most = one.most(ChatRequest(HELLO, 77))
        assert most.usage.output == 77 and most.usage.input >= len(json.dumps(HELLO, ensure_ascii=False).encode())
        assert most.cost == pytest.approx((most.usage.input + 2 * 77) / 1e6)


def test_a_key_stands_in_no_log_journal_error_or_text(tmp_path, caplog, capfd):
    """Whatever the server says: it repeats the key in errors, in replies and in each way in which JSON may write it."""
    secret = "sk-planted/key+9\u0041"
    caplog.set_level(logging.DEBUG)
    faults = ["status 500", "malformed", "dropped", ""]

    def answer(asked):
        return f"Your key is {secret}, or {json.dumps(secret)}."

    journal = Journal(tmp_path / "journal.jsonl", {"model": "m"})
    with ScriptedServer(answer, lambda asked, attempt: faults[attempt - 1], key=secret) as server:
        handler, spelled = server.RequestHandlerClass, "".join(f"\\u{ord(letter):04x}" for letter in secret)
        server.RequestHandlerClass = type("Spells", (handler,), {})
        server.RequestHandlerClass.reply = lambda self, status, body: handler.reply(
            self, status, json.dumps(body).replace(secret, spelled) if isinstance(body, dict) else body
        )
        one = model(server, secret)
        with caller(journal=journal) as calls:
            reply = calls.call(one, key(), request())
        assert "[key]" in reply.text
        errors = []
        for options in ({"key": secret + "x"}, {"key": secret}):
            server.key, server.fault = (
                (secret, lambda asked, attempt: "status 404") if len(errors) else (secret, lambda *a: "")
            )
            with pytest.raises(GymError) as refused:
                model(server, options["key"]).ask(request())
            errors.append(str(refused.value))
        assert server.headers[0]["Authorization"] == f"Bearer {secret}"
    everything = [reply.text, repr(one), repr(calls), *errors, caplog.text, *capfd.readouterr()]
    everything += [file.read_text() for file in tmp_path.iterdir()]
    assert not any(secret in text or secret.replace("/", "\\/") in text for text in everything)


def test_a_key_in_the_wrong_place_is_not_repeated(monkeypatch):
    from gym_core import RecipeError, load_recipe

    backend = {"backend": "openai", "path": "m", "api_key_env": "sk-planted-key"}
    with pytest.raises(RecipeError) as refused:
        load_recipe({"model": backend, "algorithm": "training_free_grpo"})
    assert "planted" not in str(refused.value) and "api_key_env" in str(refused.value)
    with pytest.raises(GymError) as refused:
        endpoint(OpenAI(path="m"), key="sk-planted\nkey")
    assert "planted" not in str(refused.value)
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(GymError, match="is not set"):
        endpoint(OpenAI(path="m", api_key_env="NO_SUCH_KEY"))
    with pytest.raises(ValidationError):
        OpenAI(path="m", base_url="https://user:secret@example.org/v1")
