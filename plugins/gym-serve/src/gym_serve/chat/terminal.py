"""The terminal of a conversation: reads lines, prints answers as they come, obeys words that begin with a stroke.

What a model writes is shown and never obeyed: control characters are written out.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import click

from gym_core.errors import GymError, printable
from gym_serve.chat.session import Session
from gym_serve.errors import TooLong

ENDLESS = 1 << 40
HELP = """\
/switch NAME   go on with another model, adapter or variant; without NAME, list them
/system TEXT   set what the model is told first; without TEXT, show it
/image PATH    put an image before what is said next
/tools         show the tools that are offered
/retry         have the last answer made again
/reset         forget what was said
/help          this list
/exit          leave; so does Ctrl-D
Ctrl-C stops an answer. A pasted text of many lines is one message; Alt-Enter begins a new line."""


class Terminal:
    """A conversation that somebody types."""

    def __init__(self, session: Session, read: Callable[[str], Awaitable[str]], colour: bool) -> None:
        """Talk in a session; `read` returns what is typed behind a prompt and raises EOFError at the end."""
        self.session, self._read, self._colour = session, read, colour
        self._done = self._pressed = False
        self._work: asyncio.Future[None] | None = None
        self._words: dict[str, Callable[[str], Awaitable[None]]] = {
            "/switch": self._switch,
            "/system": self._system,
            "/image": self._image,
            "/tools": self._tools,
            "/retry": self._retry,
            "/reset": self._reset,
            "/clear": self._reset,
            "clear": self._reset,
            "/help": self._help,
            "/exit": self._exit,
            "/quit": self._exit,
            "exit": self._exit,
        }

    async def talk(self) -> None:
        """Talk until the user leaves. Ctrl-C stops the answer that is under way, if there is one, and never the program."""

        def press(*_: object) -> None:
            if self._work is not None:
                self._pressed = True
                self._work.get_loop().call_soon_threadsafe(self._work.cancel)

        before = signal.signal(signal.SIGINT, press)
        try:
            await self._talk()
        finally:
            signal.signal(signal.SIGINT, before)

    async def _talk(self) -> None:
        while not self._done:
            try:
                waiting = self.session.calls
                text = await self._read(f"result of {waiting[0]['function']['name']}: " if waiting else "> ")
            except EOFError:
                return
            except KeyboardInterrupt:
                self.tell("Ctrl-D leaves")
                continue
            word, _, rest = text.strip().partition(" ")
            known = self._words.get(word) if word.startswith("/") or not rest else None
            if known is not None:
                await known(rest.strip())
            elif word.startswith("/") and word[1:].isalpha():
                self.tell(f"there is no `{printable(word, 40)}`; /help lists what there is")
            elif text.strip():
                await self.answer(text)

    def tell(self, text: str) -> None:
        """Print something that is not of the model."""
        self.write("\n".join(printable(line, ENDLESS) for line in text.splitlines()) + "\n", dim=True)

    def write(self, text: str, dim: bool = False) -> None:
        """Print as it is, dimly where that is asked for and a terminal can."""
        click.echo(click.style(text, dim=True) if dim and self._colour else text, nl=False)
        if sys.stdout is not None:
            sys.stdout.flush()

    async def answer(self, text: str) -> None:
        """Say something and print the answer."""
        self._work, self._pressed = asyncio.ensure_future(self._stream(text)), False
        try:
            await self._work
        except asyncio.CancelledError:
            if not self._pressed:
                raise
            self.write("\n")
            self.tell("stopped")
        except TooLong as error:
            self.tell(f"{error.problems[0].why}; /reset begins anew")
        except GymError as error:
            self.tell(f"error: {error}")
        finally:
            self._work = None

    async def _stream(self, text: str) -> None:
        kind = ""
        async with aclosing(self.session.say(text)) as answer:
            async for delta in answer:
                for part, shown in (("reasoning", delta.reasoning), ("content", delta.content)):
                    if shown:
                        self.write("\n\n" * (bool(kind) and kind != part))
                        self.write(printable(shown, ENDLESS, keep="\n\t"), dim=part == "reasoning")
                        kind = part
                for call in delta.calls:
                    self.write("\n" * bool(kind))
                    self.tell(f"calls {call.name}({call.arguments})")
                    kind = ""
        self.write("\n" * bool(kind))
        self.tell(self._figures())

    def _figures(self) -> str:
        spent = self.session.spent
        parts = [f"{spent.tokens:,} token{'s' * (spent.tokens != 1)}"]
        parts += [f"{spent.speed:,.0f} tokens/s"] if spent.speed else []
        parts += [f"first after {spent.first:.2f} s"] if spent.first is not None else []
        parts += [f"{spent.usage.prompt_tokens:,} in the prompt"] if spent.usage else []
        parts += ["cut at the longest"] * spent.cut
        return f"[{', '.join(parts)}]"

    async def _switch(self, name: str) -> None:
        try:
            if name:
                await self.session.switch(name)
        except GymError as error:
            self.tell(str(error))
            return
        names = self.session.names()
        shown = [f"{'*' if each == self.session.whom else ' '} {each}" for each in names[:50]]
        more = [f"  ... and {len(names) - 50:,} more"] * (len(names) > 50)
        self.tell(f"talking to {self.session.whom}" if name else "\n".join(shown + more))

    async def _system(self, text: str) -> None:
        self.session.system = text or self.session.system
        self.tell(f"system: {self.session.system or '(nothing)'}")

    async def _image(self, path: str) -> None:
        try:
            if path:
                await self.session.show(path)
        except GymError as error:
            self.tell(str(error))
            return
        named = [str(image.named) for image in self.session.images]
        self.tell(f"before what is said next: {', '.join(named)}" if named else "no image: /image PATH names one")

    async def _tools(self, _: str) -> None:
        shown = [tool["function"] for tool in self.session.tools]
        self.tell(
            "\n".join(f"{each['name']}: {each.get('description', '')}" for each in shown) or "no tools: tools=FILE.json"
        )

    async def _retry(self, _: str) -> None:
        text = self.session.undo()
        await self.answer(text) if text is not None else self.tell("nothing was said")

    async def _reset(self, _: str) -> None:
        self.session.reset()
        self.tell("what was said is forgotten")

    async def _help(self, _: str) -> None:
        self.tell(HELP)

    async def _exit(self, _: str) -> None:
        self._done = True


def typed() -> Callable[[str], Awaitable[str]]:
    """Return what reads from the terminal: with history, editing, and pasted texts as they are."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import InMemoryHistory
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    session: PromptSession[str] = PromptSession(history=InMemoryHistory(), key_bindings=keys, prompt_continuation="  ")
    return session.prompt_async


def piped() -> Callable[[str], Awaitable[str]]:
    """Return what reads lines of a file or a pipe: UTF-8, whatever the locale says, and what is none as the locale has it.

    Where there is no input at all, that is its end.
    """
    given = sys.stdin  # None where it was closed before the program began

    async def read(prompt: str) -> str:
        line = b"" if given is None else await asyncio.to_thread(given.buffer.readline)
        if not line:
            raise EOFError
        try:
            text = line.decode()
        except UnicodeDecodeError:
            text = line.decode(given.encoding, "replace")
        return text.rstrip("\r\n")

    return read
