"""A run that is killed: the journal brings the same library back, and only calls that were under way are paid twice."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time

import pytest
from scripted_server import ScriptedServer
from simulated_world import World, exact, rows

from gym_core import BusyError, GymError
from gym_rewards.builtin.exact_match import Exact
from gym_training_free import GRPOConfig, TrainingFreeGRPO
from gym_training_free.endpoint.journal import Journal

CONFIG = GRPOConfig(group_size=3, max_epochs=1, batch_size=4, max_new_tokens=32, critic_max_new_tokens=64)
KILLS = 30


@pytest.fixture(autouse=True)
def no_disk(request, monkeypatch):
    """A killed process loses nothing that it wrote: only the death of a machine needs the disk."""
    if request.function is not test_what_is_acknowledged_is_on_the_disk:
        monkeypatch.setattr("gym_training_free.endpoint.journal.os.fsync", lambda file: None)


def train(server, output, config=CONFIG, **further):
    options = {"timeout": 20, "backoff": 0.001, "concurrency": 4, **further}
    return TrainingFreeGRPO("m", config, server.base_url, output=output, **options).train(rows(9), exact)


def killed(server, output, lines):
    """Train in another process that kills itself as soon as the journal has so many lines; return how it ended."""
    pid = os.fork()
    if pid == 0:
        write, written = os.write, 0

        def counting(file, data):
            nonlocal written
            done = write(file, data)
            written += bytes(data).endswith(b"}\n")
            if written >= lines:
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        os.write = counting
        try:
            train(server, output)
        finally:
            os._exit(9)
    return os.waitpid(pid, 0)[1]


def test_killed_at_any_line_it_ends_with_the_same_library(tmp_path):
    with ScriptedServer(World()) as server:
        whole = train(server, tmp_path / "whole")
        once = server.counted["replies"]
        lines = (tmp_path / "whole/journal.jsonl").read_text().splitlines()
        assert len(whole) > 1 and len(lines) > 60
        for number, line in enumerate(random.Random(5).sample(range(2, len(lines)), KILLS)):
            output, before, tokens = tmp_path / str(number), server.counted["replies"], server.total
            assert killed(server, output, line) == signal.SIGKILL
            journal = output / "journal.jsonl"
            left = [json.loads(one) for one in journal.read_text().splitlines()]
            flying = sum("sent" in one for one in left) - sum("done" in one for one in left)
            with journal.open("a") as file:
                file.write('{"done": [0, 0, 1')  # half a line
            again = train(server, output)
            assert again == whole and [one.sources for one in again] == [one.sources for one in whole]
            paid = server.counted["replies"] - before
            assert once <= paid <= once + flying and flying <= 4
            spent = [again.evidence[name]["usage"] for name in ("confirmed", "unconfirmed")]
            ledger = sum(usage["input"] + usage["output"] for usage in spent)
            assert ledger >= server.total - tokens and again.evidence["unconfirmed"]["calls"] == flying


def test_what_a_run_went_on_without_is_asked_no_more(tmp_path):
    """A question that brought nothing, a summary that never came: the same library, though the server answers all by now."""
    world = World()

    def fault(request, attempt):
        text, summary = json.dumps(request["messages"]), World.role(request) == "summary"
        return "status 400" if " 3 about" in text or (summary and " 5 about" in text) else ""

    with ScriptedServer(world, fault) as server:
        whole = train(server, tmp_path / "whole")
        once = server.counted["replies"]
        lines = len((tmp_path / "whole/journal.jsonl").read_text().splitlines())
        for line in range(lines // 2, lines + 1, lines // 8):
            output, before, server.fault = tmp_path / str(line), server.counted["replies"], fault
            killed(server, output, line)
            left = (output / "journal.jsonl").read_text().splitlines()
            flying = sum('"sent"' in one for one in left) - sum('"done"' in one or '"failed"' in one for one in left)
            server.fault = lambda request, attempt: ""
            assert train(server, output) == whole
            assert server.counted["replies"] - before <= once + flying
    with ScriptedServer(world, lambda request, attempt: "status 503") as server:
        with pytest.raises(GymError, match="no answer to 8 calls in a row"):
            train(server, tmp_path / "down", retries=0)
        server.fault = lambda request, attempt: ""
        assert len(train(server, tmp_path / "down")) > 1  # where nobody answered, it asks again


def test_a_finished_run_asks_nothing_again(tmp_path):
    with ScriptedServer(World()) as server:
        first = train(server, tmp_path)
        asked = len(server.requests)
        assert train(server, tmp_path) == first and len(server.requests) == asked
        further = CONFIG.model_copy(update={"max_total_tokens": 10**9})
        assert train(server, tmp_path, further) == first and len(server.requests) == asked
        with pytest.raises(BusyError, match="other questions, rewards, options"):
            train(server, tmp_path, CONFIG.model_copy(update={"temperature_train": 0.9}))


def test_scores_of_another_function_are_not_taken_up(tmp_path):
    """The journal holds what a reward said; another function, or other rewards, make it another run."""

    def trained(reward):
        options = {"timeout": 20, "backoff": 0.001, "concurrency": 4}
        return TrainingFreeGRPO("m", CONFIG, server.base_url, output=tmp_path, **options).train(rows(9), reward)

    with ScriptedServer(World()) as server:
        first = trained(exact)
        assert trained(exact) == first
        for other in (lambda answer, row: 0.0, Exact(weight=-1.0), None):
            with pytest.raises(BusyError, match="rewards"):
                trained(other)


def test_equal_rollouts_stay_apart_and_another_request_is_asked(tmp_path):
    """The key names a call; a request that is another one than then is no answer to it."""
    from gym_training_free.endpoint.journal import Key
    from gym_training_free.endpoint.ledger import Charge
    from gym_training_free.endpoint.reply import ChatReply

    journal = Journal(tmp_path / "j", {})
    for sample in range(2):
        key = Key(0, 0, 0, sample, "rollout")
        journal.sent(key, "same", Charge())
        journal.replied(key, "same", ChatReply(f"reply {sample}"), Charge(), True)
    journal.close()
    again = Journal(tmp_path / "j", {})
    assert [again.reply(Key(0, 0, 0, sample, "rollout"), "same").text for sample in range(2)] == ["reply 0", "reply 1"]
    assert again.reply(Key(0, 0, 0, 0, "rollout"), "other") is None
    again.close()


@pytest.mark.parametrize("line", ["{]", '{"done": [0, 0, 0, 0, "rollout", 1]}', '{"sent": 5}', "[]"])
def test_a_damaged_journal_is_named(tmp_path, line):
    Journal(tmp_path / "j", {}).close()
    with (tmp_path / "j").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(GymError, match="journal"):
        Journal(tmp_path / "j", {})


def test_what_is_acknowledged_is_on_the_disk(tmp_path, monkeypatch):
    """A call before it leaves, its reply before anybody acts on it: a power cut at any moment loses neither."""
    held, world, file = [b""], World(), tmp_path / "run" / "journal.jsonl"
    monkeypatch.setattr(
        "gym_training_free.endpoint.journal.os.fsync", lambda descriptor: held.append(file.read_bytes())
    )
    asked = []

    def answer(request):
        asked.append((len(held) - 1, world.total))
        said = world(request)
        world.total += 1
        return said

    world.total = 0
    with ScriptedServer(answer) as server:
        whole = train(server, tmp_path / "run")
        for cut, (disk, answered) in enumerate(asked[::17]):
            left = [json.loads(line) for line in held[disk].splitlines()]
            assert sum("sent" in line for line in left) > answered
            folder = tmp_path / str(cut)
            folder.mkdir()
            (folder / "journal.jsonl").write_bytes(held[disk] + bytes(100) + b'{"done": [0, 0, 1\n')
            assert train(server, folder) == whole
    # Every reply that a later call follows from was there before that call: answers before summaries, summaries before lessons.
    for disk, _ in asked:
        left = [json.loads(line) for line in held[disk].splitlines()]
        roles = {line["sent"][4] for line in left if "sent" in line}
        done = [line["done"][4] for line in left if "done" in line]
        assert "summary" not in roles or done.count("rollout") >= 12


def test_lines_share_a_visit_to_the_disk(tmp_path, monkeypatch):
    visits = []
    monkeypatch.setattr(
        "gym_training_free.endpoint.journal.os.fsync", lambda file: (visits.append(file), time.sleep(0.02))
    )
    from gym_training_free.endpoint.journal import Key
    from gym_training_free.endpoint.ledger import Charge

    journal = Journal(tmp_path / "j", {})
    threads = [
        threading.Thread(target=journal.sent, args=(Key(0, 0, n, 0, "rollout"), "d", Charge())) for n in range(50)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal.close()
    assert len(visits) < 25 and len((tmp_path / "j").read_text().splitlines()) == 51
