"""An endpoint that behaves, and all the ways in which one does not, on a real server in this process."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from pydantic import ValidationError

from gym_core.errors import GymError
from gym_rewards import Http, RewardInput
from gym_rewards.http_client import HttpClient, NoReply, TooLarge

ANSWERS = [RewardInput("a" * n, {"answer": str(n)}, [{"role": "user", "content": "?"}], f"r{n}", n) for n in range(5)]


class Endpoint(ThreadingHTTPServer):
    """Replies with what `behaviour` makes of a request; keeps the requests."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests, self.behaviour, self.over = [], scores, threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}/score?model=mine"


class Handler(BaseHTTPRequestHandler):
    """Hands requests to the behaviour of the server."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, dict(self.headers), body))
        self.server.behaviour(self, body)

    def reply(self, status, body, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        """Stay quiet."""


def scores(handler, body):
    handler.reply(200, json.dumps({"scores": [len(one["text"]) for one in body["inputs"]]}).encode())


def says(status, body=b"", **headers):
    return lambda handler, _: handler.reply(status, body, **headers)


def hangs(handler, body):
    handler.server.over.wait(30)


def drips(handler, body):
    handler.send_response(200)
    handler.end_headers()
    while not handler.server.over.wait(0.05):
        handler.wfile.write(b" ")
        handler.wfile.flush()


def hangs_up(handler, body):
    handler.connection.close()


@pytest.fixture
def endpoint():
    server = Endpoint()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.over.set()
    server.shutdown()
    thread.join()
    server.server_close()


def reward(endpoint, **options):
    return Http(url=endpoint.url, **({"timeout": 0.5, "backoff": 0.01} | options)).build()


def test_answers_are_sent_in_batches_and_scores_come_back_in_order(endpoint):
    assert reward(endpoint, batch=2)(ANSWERS) == [0, 1, 2, 3, 4]
    assert [len(body["inputs"]) for _, _, body in endpoint.requests] == [2, 2, 1]
    path, headers, body = endpoint.requests[0]
    assert (
        path == "/score?model=mine" and headers["Content-Type"] == "application/json" and "Authorization" not in headers
    )
    assert body["inputs"][1] == {
        "text": "a",
        "row": {"answer": "1"},
        "messages": [{"role": "user", "content": "?"}],
        "id": "r1",
        "tokens": 1,
        "finished": True,
    }


def test_a_date_in_a_row_goes_there_as_text(endpoint):
    reward(endpoint)([RewardInput("a", {"day": date(2026, 1, 2)})])
    assert endpoint.requests[0][2]["inputs"][0]["row"] == {"day": "2026-01-02"}


def test_turns_go_there_where_there_were_some(endpoint):
    turns = [
        {"role": "assistant", "content": "a"},
        {"role": "tool", "content": "4"},
        {"role": "assistant", "content": "b"},
    ]
    Http(url=endpoint.url).build()([RewardInput("b", turns=turns, environment_reward=0.5), RewardInput("b")])
    ((_, _, body),) = endpoint.requests
    assert body["inputs"][0]["turns"] == turns and body["inputs"][0]["environment_reward"] == 0.5
    assert not {"turns", "environment_reward"} & body["inputs"][1].keys()


def test_no_answers_need_no_request(endpoint):
    assert reward(endpoint)([]) == [] and endpoint.requests == []


def test_null_is_no_opinion(endpoint):
    endpoint.behaviour = says(200, b'{"scores": [null, -1.5]}')
    assert reward(endpoint)(ANSWERS[:2]) == [None, -1.5]


def test_the_token_comes_from_the_environment(endpoint, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "sesame")
    reward(endpoint, token="MY_TOKEN")(ANSWERS)
    assert endpoint.requests[0][1]["Authorization"] == "Bearer sesame"
    monkeypatch.delenv("MY_TOKEN")
    with pytest.raises(GymError, match="MY_TOKEN is not set"):
        reward(endpoint, token="MY_TOKEN")


@pytest.mark.parametrize(
    "told",
    [says(403, b"no: sk-planted/token"), says(200, b"sk-planted/token"), says(302, Location="/?sk-planted/token")],
)
def test_a_token_that_an_endpoint_quotes_is_crossed_out(endpoint, monkeypatch, told):
    monkeypatch.setenv("MY_TOKEN", "sk-planted/token")
    endpoint.behaviour = told
    with pytest.raises(GymError, match=r"\[token\]") as failed:
        reward(endpoint, token="MY_TOKEN")(ANSWERS)
    assert "planted" not in str(failed.value)


@pytest.mark.parametrize(
    "behaviour", [says(500), says(503), says(429), hangs_up, hangs], ids=["500", "503", "429", "up", "hang"]
)
def test_what_may_pass_is_tried_again(endpoint, behaviour):
    def recovers(handler, body):
        (behaviour if len(endpoint.requests) < 3 else scores)(handler, body)

    endpoint.behaviour = recovers
    assert reward(endpoint, timeout=0.3)(ANSWERS) == [0, 1, 2, 3, 4]
    assert len(endpoint.requests) == 3


@pytest.mark.parametrize(
    ("behaviour", "why", "requests"),
    [
        (says(500), "status 500, 3 times", 3),
        (hangs, r"within 0.5 s, 3 times", 3),
        (drips, r"within 0.5 s, 3 times", 3),
        (hangs_up, ", 3 times", 3),
        (says(404, b"no such page"), "status 404: b'no such page'", 1),
        (says(200, b"<html>"), "replied with b'<html>'", 1),
        (says(200, b'{"scores": ["high"]}'), "replied with", 1),
        (says(200, b'{"scores": [true, 1, 1, 1, 1]}'), "replied with", 1),
        (says(200, b"[1, 2, 3, 4, 5]"), "replied with", 1),
        (says(200, b"[" * 100_000), "replied with", 1),
        (says(200, b""), "replied with b''", 1),
        (says(200, b'{"scores": [1, 2]}'), "2 scores for 5 completions", 1),
        (says(302, Location="file:///etc/passwd"), "redirects to file:///etc/passwd", 1),
        (says(307, Location="http://127.0.0.1:9/"), "redirects to", 1),
    ],
    ids=range(14),
)
def test_what_does_not_pass_is_an_error_with_the_address(endpoint, behaviour, why, requests):
    endpoint.behaviour = behaviour
    began = time.monotonic()
    with pytest.raises(GymError, match=why) as raised:
        reward(endpoint, retries=2)(ANSWERS)
    assert time.monotonic() - began < 5
    assert len(endpoint.requests) == requests
    assert endpoint.url in str(raised.value) and len(str(raised.value).splitlines()) <= 4


def test_nobody_listens():
    with pytest.raises(GymError, match="refused"):
        Http(url="http://127.0.0.1:1/", retries=1, backoff=0).build()(ANSWERS)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://x/", "127.0.0.1:80", ""])
def test_other_schemes_are_refused(url):
    with pytest.raises(ValidationError):
        Http(url=url)


def client(endpoint, **options):
    known = {"timeout": 5.0, "retries": 2, "backoff": 0.0, "passing": {503}, "largest": 1000}
    return HttpClient(endpoint.url, "", **(known | options))


def asks_for(seconds):
    """Be busy once, and say for how long."""

    def behaviour(handler, body):
        busy = len(handler.server.requests) == 1
        handler.reply(503 if busy else 200, b"", **({"Retry-After": seconds} if busy else {}))

    return behaviour


@pytest.mark.parametrize(
    ("said", "options", "shortest", "longest"),
    [
        ("1", {}, 1.0, 3.0),  # what the server says
        ("3600", {"longest_wait": 0.1}, 0.1, 3.0),  # but not whatever it says
        ("soon", {"backoff": 0.3}, 0.3, 3.0),  # no time: as without it
        ("0", {"backoff": 0.3}, 0.3, 3.0),
    ],
)
def test_a_server_may_say_when_to_ask_again(endpoint, said, options, shortest, longest):
    endpoint.behaviour = asks_for(said)
    began = time.monotonic()
    assert client(endpoint, **options).send("POST", body="{}").status == 200
    assert shortest <= time.monotonic() - began < longest


def test_each_repetition_waits_twice_as_long(endpoint):
    endpoint.behaviour = says(503)
    began = time.monotonic()
    with pytest.raises(NoReply, match="status 503, 4 times"):
        client(endpoint, retries=3, backoff=0.1).send("POST", body="{}")
    assert 0.1 + 0.2 + 0.4 <= time.monotonic() - began < 2


def test_a_reply_is_read_up_to_its_limit_and_no_further(endpoint):
    endpoint.behaviour = says(200, b"x" * 1000)
    assert client(endpoint).send("POST", body="{}").body == b"x" * 1000
    endpoint.behaviour = says(200, b"x" * 1001)
    with pytest.raises(TooLarge):
        client(endpoint).send("POST", body="{}")
    assert len(endpoint.requests) == 2  # it is not asked again


@pytest.mark.parametrize(
    ("begin", "drop"),
    [
        (b"HTTP/1.1 200 OK\r\nX: ", b"y"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"0"),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"0"),
    ],
    ids=["header", "continue", "size of a chunk", "body"],
)
def test_time_is_over_whatever_drips(begin, drop):
    """The timeout is that of a whole reply, not of the pause between two bytes."""
    over, listening = threading.Event(), socket.create_server(("127.0.0.1", 0))

    def serve():
        connection, _ = listening.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(begin)
            while not over.wait(0.02):
                connection.sendall(drop)

    thread = threading.Thread(target=serve)
    thread.start()
    began = time.monotonic()
    address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    with listening, pytest.raises(NoReply, match="no whole reply within"):
        try:
            HttpClient(address, "", 0.3, 0, 0.0, (), 1 << 20).send("POST", body="{}")
        finally:
            over.set()
            thread.join()
    assert time.monotonic() - began < 3


@pytest.mark.parametrize(
    "said", ["9" * 5000, "Fri, 31 Dec 99999 23:59:59 GMT", "Fri, 31 Dec 9999999999999 0:0:0 GMT", "-5"]
)
def test_a_time_without_sense_is_none(endpoint, said):
    endpoint.behaviour = asks_for(said)
    assert client(endpoint).send("POST", body="{}").status == 200


def test_the_token_is_not_shown_with_the_client():
    assert "planted" not in repr(HttpClient("http://127.0.0.1:1/", "planted", 1, 0, 0.0, (), 10))
