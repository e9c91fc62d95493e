"""`gym chat`: a conversation in the terminal."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from pathlib import Path
from typing import Any

import click

from gym_core.errors import RecipeError
from gym_core.files import expanded
from gym_serve.answer_options import AnswerOptions
from gym_serve.api.options import ApiOptions
from gym_serve.options import ServingCommand, read


class ChatOptions(AnswerOptions):
    """The options of `gym chat`."""

    tools: Path | None = None
    """JSON file with a list of tools, as OpenAI's API has them."""


@click.command(cls=ServingCommand, options=ChatOptions)
@click.argument("words", nargs=-1, required=True, metavar="MODEL... [KEY=VALUE]...")
@click.option("--system", help="What the model is told first.")
def chat(words: tuple[str, ...], system: str | None) -> None:
    """Talk to a run or a model in the terminal; /help says what can be typed.

    MODEL is a run, a checkpoint, an artifact or a model, or a YAML file with a section `serving`, or one of LLaMA-Factory.
    KEY=VALUE sets an option: temperature=0.7, tools=tools.json, adapters.mine=runs/mine/model.

    Example: `gym chat runs/first temperature=0.7`
    """
    options = read(ChatOptions, words, {"system": system}, beside=ApiOptions.model_fields)
    tools = read_tools(options.tools) if options.tools else []
    asyncio.run(_chat(options, tools))


async def _chat(options: ChatOptions, tools: list[dict[str, Any]]) -> None:
    from gym_serve.chat.session import Session
    from gym_serve.chat.terminal import Terminal, piped, typed

    screen = all(each is not None and each.isatty() for each in (sys.stdin, sys.stdout))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # what a terminal cannot show is written out
    if screen:
        click.echo(click.style(f"loading {', '.join(options.models)} ...", dim=True), nl=False)
    try:
        engine = options.build()
    finally:
        if screen:
            click.echo("\r\x1b[2K", nl=False)
    session = Session(engine, options.sampling(), options.system, tools, options)
    if options.tenant is not None:
        await session.switch(f"@{options.tenant}")
    options.check(await engine.described(session.whom.model, session.whom.tenant))
    terminal = Terminal(session, typed() if screen else piped(), colour=screen)
    others = len(session.names()) - 1
    more = f"; {others:,} more with /switch" * bool(others)
    if screen:
        terminal.tell(f"talking to {session.whom}{more}; /help lists what can be typed, Ctrl-D leaves")
    try:
        await terminal.talk()
    finally:
        await engine.close(1.0)


def read_tools(path: Path) -> list[dict[str, Any]]:
    """Return the tools of a JSON file. Raises RecipeError where it holds no list of functions."""
    try:
        found = json.loads(expanded(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        raise RecipeError(why, where=str(path), key="tools", fix="name a JSON file with a list of tools") from error
    listed = found if isinstance(found, list) else []
    rows = [each.get("function", each) if isinstance(each, dict) else None for each in listed]
    if not rows or not all(isinstance(each, dict) and isinstance(each.get("name"), str) for each in rows):
        raise RecipeError(
            "holds no list of functions", where=str(path), key="tools", fix='write [{"type": "function", ...}]'
        )
    return [{"type": "function", "function": each} for each in rows]
