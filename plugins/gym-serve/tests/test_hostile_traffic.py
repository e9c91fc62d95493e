"""Traffic that means no good: each is answered with what is wrong, or broken off, and the next request is served as ever."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import statistics
import threading
import time

import pytest
from api_server import received, served
from parrot import Parrot, ParrotEngine

from gym_core import GymError
from gym_serve import Limits, ModelSource
from gym_serve.api.auth import Access, Tokens, digest, read_tokens
from gym_serve.api.options import ApiOptions
from gym_serve.api.server import tokens_of

SECRET, ALICE = "a-secret-that-nobody-guesses", "the-token-of-alice-alone"
TOKENS = Tokens([(digest(SECRET), Access()), (digest(ALICE), Access(("parrot@alice",)))])
CHAT = {"model": "parrot", "messages": [{"role": "user", "content": "one two"}], "temperature": 0}
LIMITS = {
    "max_body_bytes": 200_000,
    "max_messages": 50,
    "max_connections": 300,
    "max_concurrent": 40,
    "header_seconds": 1.0,
    "body_seconds": 1.0,
    "write_seconds": 1.0,
    "request_seconds": 3.0,
}


def engine(pause: float = 0.0, **limits: int) -> ParrotEngine:
    return ParrotEngine(Parrot(pause=pause), [ModelSource("parrot", "nowhere")], Limits(**limits))


@pytest.fixture(scope="module")
def server():
    with served(engine(), TOKENS, **LIMITS, allowed_origins=["https://friend.example"]) as found:
        yield found


def head(
    path: str = "/v1/chat/completions", method: str = "POST", token: str | None = SECRET, **headers: object
) -> bytes:
    lines = {"host": "127.0.0.1", "content-type": "application/json"}
    if token is not None:
        lines["authorization"] = f"Bearer {token}"
    lines |= {name.replace("_", "-"): str(value) for name, value in headers.items()}
    return "\r\n".join([f"{method} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in lines.items()), "", ""]).encode()


def ask(server, body: bytes | dict, path: str = "/v1/chat/completions", **headers) -> tuple[int, dict]:
    """Return status and body of a request in bytes."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    first, _, rest = server.raw(head(path, content_length=len(data), connection="close", **headers) + data).partition(
        b"\r\n\r\n"
    )
    return int(first.split()[1]), json.loads(rest) if rest.startswith(b"{") else {}


def error(server, body: bytes | dict, **headers) -> tuple[int, str | None]:
    status, answer = ask(server, body, **headers)
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    return status, answer["error"]["param"] or answer["error"]["code"]


@pytest.fixture(autouse=True)
def served_as_ever(server):
    yield
    status, answer = ask(server, CHAT)
    assert status == 200 and answer["choices"][0]["message"]["content"] == "one two"


@pytest.mark.parametrize("token", [None, "", "wrong", SECRET[:-1], SECRET + "x", "\xff"])
def test_no_key_or_a_wrong_one(server, token):
    assert error(server, CHAT, token=token) == (401, "invalid_api_key")
    assert ask(server, b"", "/metrics", token=token)[0] == 401


def test_a_key_may_come_as_anthropic_sends_it(server):
    assert ask(server, CHAT, token=None, x_api_key=SECRET)[0] == 200


def test_comparing_takes_the_same_time_for_every_wrong_key():
    known = Tokens([(digest(f"{number:032}"), Access()) for number in range(50)])
    near, far = f"Bearer {49:031}x", "Bearer " + "z" * 32

    def once(header: str) -> float:
        began = time.perf_counter()
        for _ in range(200):
            known.access(header)
        return time.perf_counter() - began

    times = [(once(near), once(far)) for _ in range(15)]
    one, two = (statistics.median(column) for column in zip(*times, strict=True))
    assert abs(one - two) < 0.5 * max(one, two)


def test_models_outside_a_token_are_not_there(server):
    status, listed = ask(server, b"", "/v1/models", method="GET", token=ALICE)
    assert status == 200
    status, absent = ask(server, {**CHAT, "model": "parrot@nobody"}, token=ALICE)
    _, other = ask(server, {**CHAT, "model": "parrot@bob"}, token=ALICE)
    _, base = ask(server, CHAT, token=ALICE)
    assert status == 404
    assert json.dumps(other).replace("parrot@bob", "X") == json.dumps(absent).replace("parrot@nobody", "X")
    assert json.dumps(base).replace("`parrot`", "X") == json.dumps(absent).replace("`parrot@nobody`", "X")
    assert [model["id"] for model in listed["data"]] == ["parrot@alice"]
    assert ask(server, {**CHAT, "model": "parrot@alice"}, token=ALICE)[0] == 200


@pytest.mark.parametrize(
    "name",
    ["../../etc/passwd", "parrot@../bob", "parrot@", "@bob", "parrot@a/b", "parrot@.x", "/etc/passwd", "parrot@bob\0"],
)
def test_names_are_never_paths(server, name):
    assert error(server, {**CHAT, "model": name}) == (404, "model")


def test_a_body_of_a_hundred_megabytes(server):
    assert b" 413 " in server.raw(head(content_length=100_000_000) + b"{}")[:30]
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    sent = head(transfer_encoding="chunked") + chunk * 20
    assert b" 413 " in server.raw(sent)[:30]


def test_a_million_messages(server):
    many = {**CHAT, "messages": [{}] * 40_000}
    assert error(server, many) == (413, "messages")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", -1),
        ("max_tokens", 10**30),
        ("max_completion_tokens", 0),
        ("n", 10**6),
        ("n", 0),
        ("temperature", -1),
        ("temperature", "hot"),
        ("top_p", 2),
        ("min_p", 2),
        ("min_p", 0.1),
        ("top_logprobs", 10**6),
        ("stop", [""]),
        ("stop", ["x"] * 1000),
        ("seed", 10**40),
        ("logit_bias", {"a": 1}),
        ("messages", []),
        ("messages", "hello"),
        ("model", None),
        ("unknown_field", 1),
        ("chat_template", "{{ 7 * 7 }}"),
        ("prompt_embeds", "gASVAAAA"),
        ("functions", []),
        ("response_format", {"type": "json_object"}),
        ("logit_bias", {"1": 5}),
        ("tool_choice", "required"),
        ("stream_options", {"include_usage": True}),
        ("chat_template_kwargs", {"tokenize": True}),
    ],
)
def test_a_value_that_cannot_be_is_named(server, field, value):
    status, named = error(server, {**CHAT, field: value})
    assert status == 400 and named.startswith(field)


@pytest.mark.parametrize("url", ["http://169.254.169.254/", "file:///etc/passwd", "data:image/png;base64,AAAA"])
def test_nothing_is_fetched_for_a_request(server, url):
    for part in (
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "input_audio", "input_audio": {"data": url}},
    ):
        status, named = error(server, {**CHAT, "messages": [{"role": "user", "content": [part]}]})
        assert status == 400 and named.startswith("messages")


@pytest.mark.parametrize(
    "body",
    [
        b"\xff\xfe{}",
        b'{"model": "parrot", "messages": [{"role": "user", "content": "\xc3\x28"}]}',
        b'{"model": "parrot", "messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"model": "parrot", "tools": [{"x": "\\udfff"}], "messages": []}',
        b"[1]",
        b"",
        b"{",
        b"[" * 50_000,
        b'{"a":' * 20_000 + b"1" + b"}" * 20_000,
        b'{"a": ' + b"[" * 100 + b"]" * 100 + b"}",
        b'{"temperature": NaN}',
        b'{"temperature": 1e999}',
        b'{"seed": ' + b"9" * 10_000 + b"}",
        b'{"model": "parrot", "model": "other"}',
    ],
    ids=lambda body: body[:24].decode("latin-1"),
)
def test_what_is_no_json_of_a_request(server, body):
    assert error(server, body)[0] == 400


def test_a_body_of_another_type(server):
    assert error(server, CHAT, content_type="text/plain") == (415, "wrong_type")


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "127.0.0.1@evil.example", "", "localhost:80:80"]
)
def test_a_host_that_is_not_this_server(server, host):
    assert error(server, CHAT, host=host) == (421, "wrong_host")


def test_two_hosts(server):
    assert b" 400 " in server.raw(head(content_length=2, HOST="evil.example") + b"{}")[:30]


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1.evil.example", "https://friend.example.evil"]
)
def test_pages_of_a_foreign_origin(server, origin):
    assert error(server, CHAT, origin=origin) == (403, "wrong_origin")
    answer = server.raw(
        head(method="OPTIONS", token=None, origin=origin, connection="close", access_control_request_method="POST")
    )
    assert b"access-control-allow" not in answer.lower()


def test_pages_of_a_known_origin(server):
    answer = server.raw(head(method="OPTIONS", token=None, origin="https://friend.example", connection="close"))
    assert b" 204 " in answer[:30] and b"access-control-allow-origin: https://friend.example" in answer
    assert b"credentials" not in answer
    assert ask(server, CHAT, origin="https://friend.example")[0] == 200


def test_paths_and_methods_that_are_not_there(server):
    assert error(server, CHAT, path="/v1/files")[0] == 404
    assert error(server, b"", path="/v1/chat/completions", method="GET")[0] == 405
    for path in ("/docs", "/openapi.json", "/../../etc/passwd", "/v1/models/..%2f..%2fetc%2fpasswd"):
        assert ask(server, b"", path, method="GET")[0] == 404


def test_a_head_that_never_ends(server):
    with server.connect() as connection:
        began = time.monotonic()
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n")
        assert received(connection) == b""
        assert time.monotonic() - began < 4


def test_a_head_that_trickles_in(server):
    with server.connect() as connection:
        began = time.monotonic()
        with pytest.raises(OSError):
            while time.monotonic() - began < 10:
                connection.sendall(b"x")
                time.sleep(0.1)
        assert time.monotonic() - began < 4


def test_a_head_that_is_too_large(server):
    assert b" 400 " in server.raw(b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nx: " + b"y" * 200_000)[:30]


def test_a_body_that_never_comes(server):
    began = time.monotonic()
    answer = server.raw(head(content_length=100) + b'{"model"')
    assert b" 408 " in answer[:30] and time.monotonic() - began < 4


def test_a_reply_that_takes_too_long_ends_with_an_error(server):
    slow = {**CHAT, "messages": [{"role": "user", "content": "slowly endless"}]}
    assert error(server, slow) == (408, "request_too_slow")
    assert server.engine.running == 0


def wait_for(condition, seconds: float = 5.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_what_is_made_for_it(server, stream):
    asked = json.dumps({**CHAT, "messages": [{"role": "user", "content": "slowly endless"}], "stream": stream}).encode()
    before = server.engine.cancelled
    with server.connect() as connection:
        connection.sendall(head(content_length=len(asked)) + asked)
        wait_for(lambda: server.engine.running == 1)
        if stream:
            assert b" 200 " in connection.recv(4096)[:30]
    wait_for(lambda: server.engine.running == 0)
    assert server.engine.cancelled == before + 1


def test_a_client_that_takes_nothing_is_gone(server):
    """Its buffers fill, and then it is broken off; until then it holds one place."""
    asked = json.dumps(
        {**CHAT, "messages": [{"role": "user", "content": f"endless {'x' * 20_000}"}], "stream": True}
    ).encode()
    began = time.monotonic()
    with server.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(head(content_length=len(asked)) + asked)
        wait_for(lambda: server.engine.running == 1)
        wait_for(lambda: server.engine.running == 0)
    assert time.monotonic() - began < LIMITS["request_seconds"] - 0.5


def test_what_goes_wrong_in_a_stream_is_said_in_it(server):
    asked = {**CHAT, "messages": [{"role": "user", "content": "break a b c d"}], "stream": True}
    data = json.dumps(asked).encode()
    answer = server.raw(head(content_length=len(data), connection="close") + data)
    assert b'"the server failed on this request"' in answer and b"[DONE]" not in answer and b"it broke" not in answer
    status, told = ask(server, {**asked, "stream": False})
    assert status == 500 and told["error"]["message"] == "the server failed on this request"


def test_back_pressure(server):
    """More than may be in work are told when to come back, and the rest get their replies."""
    asked = json.dumps({**CHAT, "messages": [{"role": "user", "content": "slowly a b"}]}).encode()
    answers: list[bytes] = []

    def one() -> None:
        answers.append(server.raw(head(content_length=len(asked), connection="close") + asked))

    threads = [threading.Thread(target=one) for _ in range(60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    statuses = [int(answer.split()[1]) for answer in answers]
    assert set(statuses) == {200, 429} and 20 <= statuses.count(200) <= 59
    assert all(b"retry-after: " in answer for answer in answers if b" 429 " in answer[:30])
    assert all(b"slowly a b" in answer for answer in answers if b" 200 " in answer[:30])


def test_more_connections_than_are_taken(server):
    """The ones beyond the limit are closed; those that say nothing go within the time for a head."""
    held = [server.connect() for _ in range(400)]
    closed = 0
    for connection in held[-80:]:
        connection.settimeout(0.5)
        try:
            closed += connection.recv(1) == b""
        except ConnectionError:
            closed += 1
        except TimeoutError:
            pass
    assert closed >= 60
    wait_for(lambda: len(server.server.server_state.connections) == 0, 8)
    for connection in held:
        connection.close()


def test_prompts_are_not_logged(server, caplog):
    with caplog.at_level(0):
        ask(server, {**CHAT, "messages": [{"role": "user", "content": "my password"}]})
        ask(server, {**CHAT, "messages": [{"role": "user", "content": "my password"}], "n": -1})
    assert "my password" not in caplog.text


def test_shutdown_finishes_streams():
    with served(engine(pause=0.05)) as server:
        asked = json.dumps(
            {**CHAT, "messages": [{"role": "user", "content": " ".join("abcdefghij")}], "stream": True}
        ).encode()
        with server.connect() as connection:
            connection.sendall(head(content_length=len(asked)) + asked)
            first = connection.recv(4096)
            assert b" 200 " in first[:30]
            server.server.should_exit = True
            rest = first + received(connection)
        assert b'"content":" j"' in rest and b"[DONE]" in rest


def test_elsewhere_a_token_is_made_and_shown_once():
    shown: list[str] = []
    assert tokens_of(ApiOptions(), shown.append) is None and not shown
    for options in (ApiOptions(host="0.0.0.0"), ApiOptions(host="::"), ApiOptions(token_required=True)):
        shown.clear()
        tokens = tokens_of(options, shown.append)
        (line,) = shown
        assert tokens.access(f"Bearer {line.split()[-1]}") == Access() and tokens.access("Bearer x") is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("tokens: []", "holds no list of tokens"),
        ("a: 1", "holds no list of tokens"),
        ("tokens: [{token: short, models: ['*']}]", "16 characters"),
        ("tokens: [{token: 0123456789abcdef}]", "names no models"),
        ("tokens: [{token: 0123456789abcdefg, models: ['../x@y/z']}]", "names no models"),
        ("tokens: [{sha256: zz, models: ['*']}]", "64 hexadecimal digits"),
        ("tokens: [{token: 0123456789abcdefg, models: ['*'], admin: true}]", "unknown key `admin`"),
    ],
)
def test_a_file_of_tokens_that_says_nothing_opens_nothing(tmp_path, text, why):
    (tmp_path / "tokens.yaml").write_text(text)
    with pytest.raises(GymError, match=why):
        read_tokens(tmp_path / "tokens.yaml")


def test_a_file_of_tokens(tmp_path):
    hashed = hashlib.sha256(b"another-good-token").hexdigest()
    rows = f"- {{token: a-good-long-token, models: [base@*]}}\n- {{sha256: {hashed}, models: [base]}}\n"
    (tmp_path / "tokens.yaml").write_text(f"tokens:\n{rows}")
    tokens = read_tokens(tmp_path / "tokens.yaml")
    assert tokens.access("Bearer a-good-long-token") == Access(("base@*",))
    assert tokens.access("", "another-good-token") == Access(("base",))


async def storm(port: int, clients: int, turns: int, seconds: float = 0.0, stall: int = 10) -> dict[str, int]:
    """Have clients connect, stall, leave and ask: so many turns each, and for so long.

    Six turns are one of each kind. Returns how often each got a right answer, and what else came.
    """
    until = time.monotonic() + seconds
    seen = {"right": 0, "refused": 0, "left": 0, "wrong": 0}

    async def client(number: int) -> None:
        turn = number
        while turn < number + turns or time.monotonic() < until:
            turn += 1
            text = f"client {number} turn {turn}"
            asked = json.dumps(
                {**CHAT, "messages": [{"role": "user", "content": text}], "stream": turn % 2 == 0}
            ).encode()
            sent = head(content_length=len(asked), connection="close") + asked
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                seen["left"] += 1
                continue
            try:
                cut = {0: 0, 1: 30, 2: len(sent) - 5}.get(turn % 6, len(sent))
                writer.write(sent[:cut])
                if cut < len(sent):
                    await asyncio.sleep(0.02 * (turn % stall))  # stalls, and leaves
                    seen["left"] += 1
                elif turn % 6 == 3:
                    await reader.read(20)
                    seen["left"] += 1
                else:
                    answer = await asyncio.wait_for(reader.read(-1), 20)
                    status = answer.split()[1] if answer else b""
                    content = (
                        "".join(
                            str(choice.get("delta", choice.get("message"))["content"])
                            for part in answer.decode().splitlines()
                            if part.startswith(("data: {", "{"))
                            for choice in json.loads(part.removeprefix("data: ")).get("choices", ())
                            if choice.get("delta", choice.get("message"))
                        )
                        if status == b"200"
                        else ""
                    )
                    right = status == b"200" and content == text
                    # Too many, or too slow where the machine is busy: told so, in a stream by its last event.
                    refused = status in (b"429", b"408", b"") or b'"error"' in answer
                    seen["right" if right else "refused" if refused else "wrong"] += 1
            except (OSError, asyncio.IncompleteReadError):
                seen["left"] += 1
            finally:
                writer.close()

    await asyncio.gather(*(client(number) for number in range(clients)))
    return seen


def test_a_thousand_at_once():
    """Each gets its own reply, or is told to come back."""

    async def one(port: int, number: int) -> tuple[int, bool]:
        asked = json.dumps({**CHAT, "messages": [{"role": "user", "content": f"number {number}"}]}).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head(content_length=len(asked), connection="close") + asked)
        answer = await reader.read(-1)
        writer.close()
        return int(answer.split()[1]), f'"content":"number {number}"'.encode() in answer

    async def all_of(port: int) -> list[tuple[int, bool]]:
        return await asyncio.gather(*(one(port, number) for number in range(1000)))

    with served(
        engine(pause=0.01), TOKENS, **LIMITS | {"max_connections": 1100, "header_seconds": 30, "request_seconds": 30}
    ) as server:
        seen = asyncio.run(all_of(server.port))
        wait_for(lambda: server.engine.running == 0)
    assert {200} <= {status for status, _ in seen} <= {200, 429} and sum(right for _, right in seen) >= 40
    assert all(right == (status == 200) for status, right in seen)


def weather(clients: int, turns: int, seconds: float = 0.0, stall: int = 10) -> None:
    import psutil

    with served(engine(pause=0.002), TOKENS, **LIMITS | {"max_concurrent": clients // 2}) as server:
        asyncio.run(storm(server.port, clients, 2))
        process = psutil.Process()
        before, threads = process.memory_info().rss, threading.active_count()
        seen = asyncio.run(storm(server.port, clients, turns, seconds, stall))
        state = server.server.server_state
        wait_for(lambda: not (server.engine.running or state.connections or state.tasks), 10)
        assert seen["wrong"] == 0 and seen["right"] >= clients // 4 and seen["left"] >= 3 * clients, seen
        assert process.memory_info().rss - before < 50 * 2**20 and threading.active_count() <= threads
        assert ask(server, CHAT)[1]["choices"][0]["message"]["content"] == "one two"
    print(seen)


def test_clients_that_connect_stall_and_leave():
    weather(clients=80, turns=6)


@pytest.mark.slow
def test_clients_that_connect_stall_and_leave_for_two_minutes():
    weather(clients=200, turns=6, seconds=120.0, stall=40)
