"""`gym chat`: in a real terminal, through a pipe, and as a conversation of its own."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import select
import subprocess
import sys
import time

import pytest
from parrot import Parrot, ParrotEngine

from gym_core import GymError
from gym_core.cli import run
from gym_serve import Limits, ModelSource, Sampling
from gym_serve.chat.session import Session, Spent

TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {}}}
COMMAND = (sys.executable, "-m", "gym_core.cli", "chat", "demo", "engine=parrot")


def session(**options) -> Session:
    engine = ParrotEngine(Parrot(), [ModelSource("demo", "nowhere")], Limits(**options))
    return Session(engine, Sampling(temperature=0.0), system="be kind", tools=[TOOL])


async def said(talk: Session, text: str) -> str:
    return "".join([delta.content async for delta in talk.say(text)])


def test_what_was_said_is_told_again():
    async def talk() -> None:
        chat = session()
        assert await said(chat, "one") == "one" and await said(chat, "think two") == "two"
        told = chat.engine.seen[-1].messages
        assert [message["role"] for message in told] == ["system", "user", "assistant", "user"]
        assert chat.messages[-1]["reasoning_content"] == "well then"
        assert chat.undo() == "think two" and [message["content"] for message in chat.messages] == ["one", "one"]
        chat.reset()
        assert await said(chat, "three") == "three" and len(chat.engine.seen[-1].messages) == 2

    asyncio.run(talk())


def test_a_call_waits_for_its_result():
    async def talk() -> None:
        chat = session()
        assert await said(chat, "call get_weather Paris Rome") == ""
        assert [json.loads(call["function"]["arguments"]) for call in chat.calls] == [
            {"city": "Paris"},
            {"city": "Rome"},
        ]
        assert await said(chat, "sunny") == "" and len(chat.calls) == 1
        assert await said(chat, "rainy") == "rainy" and not chat.calls
        assert [message["role"] for message in chat.messages][-4:] == ["assistant", "tool", "tool", "assistant"]

    asyncio.run(talk())


def test_what_is_refused_was_not_said():
    async def talk() -> None:
        chat = session()
        await said(chat, "one")
        with pytest.raises(GymError):
            await said(chat, "fail")
        assert len(chat.messages) == 2 and await said(chat, "two") == "two"

    asyncio.run(talk())


def test_an_empty_answer_is_one_also_where_it_was_stopped_before_its_first_word():
    async def talk() -> None:
        chat = session()
        chat.sampling = Sampling(temperature=0.0, stop=("one",))
        assert await said(chat, "one") == ""
        stopped = asyncio.ensure_future(said(chat, "slowly two"))
        await asyncio.sleep(0)
        stopped.cancel()
        await asyncio.gather(stopped, return_exceptions=True)
        assert await said(chat, "three") == "three"
        told = chat.engine.seen[-1].messages
        assert [message["role"] for message in told] == ["system", *["user", "assistant"] * 2, "user"]

    asyncio.run(talk())


def test_whom_one_talks_to():
    async def talk() -> None:
        chat = session()
        for name, reply in (("@bob", "bob: a"), ("alice", "alice: a"), ("demo", "a"), ("demo@bob", "bob: a")):
            await chat.switch(name)
            assert await said(chat, "a") == reply
        with pytest.raises(GymError, match="there is no `carol`"):
            await chat.switch("carol")

    asyncio.run(talk())


class Screen:
    """A terminal with a process in it."""

    def __init__(self, environment: dict[str, str], *arguments: str) -> None:
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**environment, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"},
            start_new_session=True,
            preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0),
        )
        os.close(slave)
        self.seen = ""
        self.at = 0

    def until(self, pattern: str, seconds: float = 20.0) -> str:
        """Wait until something is shown that was not matched before; return what was shown until then."""
        end = time.monotonic() + seconds
        while not (found := re.compile(pattern, re.DOTALL).search(self.seen, self.at)):
            left = end - time.monotonic()
            assert left > 0, f"no {pattern!r} in {self.seen[self.at :]!r}"
            if select.select([self.master], [], [], left)[0]:
                self.seen += os.read(self.master, 65536).decode(errors="replace")
        shown, self.at = self.seen[self.at : found.end()], found.end()
        return shown

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())


def test_in_a_terminal(environment):
    screen = Screen(environment, "engine.pause=0.002")
    try:
        screen.until(r"talking to demo.*\?2004h")
        screen.type("hello there\r")
        screen.until(r"2004lhello there.*tokens/s.*\?2004h")
        screen.type("slowly endless\r")
        screen.until(r"2004lslowly endless")
        screen.type("\x03")
        screen.until(r"stopped.*\?2004h")
        screen.type("\x03")
        screen.until(r"Ctrl-D leaves.*\?2004h")
        paste = "\n".join(f"line {number} of a paste" for number in range(40))
        screen.type(f"\x1b[200~{paste}\x1b[201~\r")
        screen.until(r"line 0 of a paste line 1.*line 39 of a paste\x1b?.*200 tokens")
        screen.type("\x1b[200~evil \x1b]0;title\x07 \x1b[31mred\x1b[201~\r")
        shown = screen.until(r"title.x07.*first after.*\?2004h")
        assert "evil \\x1b]0;title\\x07 \\x1b[31mred" in shown
        screen.type("/switch @bob\r")
        screen.until(r"talking to demo@bob.*\?2004h")
        screen.type("/exit\r")
        assert screen.process.wait(10) == 0
    finally:
        screen.process.kill()
        screen.process.wait()
        os.close(screen.master)


def test_through_a_pipe(environment, tmp_path):
    (tmp_path / "tools.json").write_text(json.dumps([TOOL]))
    done = subprocess.run(
        [*COMMAND, f"tools={tmp_path}/tools.json"],
        input="a b\ncall get_weather Rome\nsunny\n/nonsense\n/tools\n",
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0 and not done.stderr
    lines = [line for line in done.stdout.splitlines() if not line.startswith("[")]
    assert lines == [
        "a b",
        'calls get_weather({"city": "Rome"})',
        "sunny",
        "there is no `/nonsense`; /help lists what there is",
        "get_weather: ",
    ]


@pytest.mark.parametrize("locale", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C"}])
def test_input_is_utf8_whatever_the_locale_says(environment, locale):
    """What is none is replaced, and what cannot be shown is written out: neither ends the conversation."""
    given = "\u00fcber \U0001f642\r\n".encode() + b"h\xff\xe9llo\n" + b"bye\n"
    done = subprocess.run([*COMMAND], input=given, env=environment | locale, capture_output=True, timeout=60)
    lines = [line for line in done.stdout.splitlines() if not line.startswith(b"[")]
    assert done.returncode == 0 and not done.stderr and len(lines) == 3 and lines[2] == b"bye"
    said = "\u00fcber \U0001f642"
    assert lines[0] in (said.encode(), said.encode("ascii", "backslashreplace")) and lines[1].endswith(b"llo")


def test_without_an_input_it_ends(environment):
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *COMMAND], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and not done.stderr and not done.stdout


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["engine=nonsense"], "no installed plugin brings the server `nonsense`"),
        (["temperature_=1"], "did you mean `temperature`?"),
        (["temperature=9"], "temperature"),
        (["tools=/nowhere.json"], "cannot be read"),
        (["other=runs/a", "demo=runs/b"], "two models have the name `demo`"),
    ],
)
def test_what_cannot_be_started_is_said_in_four_lines(arguments, why, strange, capsys):
    assert run([*COMMAND[3:], *arguments]) != 0
    told = capsys.readouterr().err
    assert why in told and len(told.splitlines()) <= 4


def test_tokens_that_come_at_once_say_nothing_of_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("gym_serve.chat.session.time.monotonic", lambda: now[0])
    spent = Spent(began=0.0)
    for now[0], tokens in ((1.0, 0), (2.0, 5), (4.0, 8), (4.0, 0)):
        spent.count(tokens)
    assert (spent.first, spent.tokens, spent.speed) == (2.0, 13, 4.0)
    single = Spent(began=now[0])
    now[0] += 1.0
    single.count(5)
    now[0] += 0.001
    single.count(0)  # the end of a stream
    assert single.speed is None
