"""Requests that one of the offered tools can serve, answered by a single JSON tool call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from gym_tiny.tasks.task import Task, call_text, user
from gym_tiny.tasks.words import CITIES, NAMES, WORDS

KIND = "tools"


@dataclass(frozen=True)
class Tool:
    """A function on offer, how its one argument is drawn, and how users ask for it."""

    name: str
    does: str
    argument: str
    type: str
    draw: Callable[[Random], Any]
    asks: tuple[str, ...]

    def schema(self) -> dict[str, Any]:
        """The OpenAI function description."""
        properties = {self.argument: {"type": self.type}}
        parameters = {"type": "object", "properties": properties, "required": [self.argument]}
        function = {"name": self.name, "description": self.does, "parameters": parameters}
        return {"type": "function", "function": function}


TOOLS: tuple[Tool, ...] = (
    Tool(
        "get_weather",
        "Weather of a city",
        "city",
        "string",
        lambda rng: rng.choice(CITIES),
        ("What is the weather in {x}?", "Will it rain in {x}?", "Tell me the weather of {x}."),
    ),
    Tool(
        "get_time",
        "Local time of a city",
        "city",
        "string",
        lambda rng: rng.choice(CITIES),
        ("What time is it in {x}?", "Tell me the time in {x}.", "How late is it in {x}?"),
    ),
    Tool(
        "set_timer",
        "Start a timer",
        "minutes",
        "integer",
        lambda rng: rng.randrange(1, 60),
        ("Set a timer for {x} minutes.", "Wake me in {x} minutes.", "Start a timer of {x} minutes."),
    ),
    Tool(
        "find_word",
        "Look up a word",
        "word",
        "string",
        lambda rng: rng.choice(WORDS),
        ("Look up the word {x}.", "Find {x} in the dictionary.", "What does the word {x} mean?"),
    ),
    Tool(
        "call_person",
        "Call a person",
        "name",
        "string",
        lambda rng: rng.choice(NAMES),
        ("Call {x}.", "Ring {x} for me.", "I want to talk to {x} on the phone."),
    ),
)


def make(rng: Random) -> Task:
    """One request with one or two tools on offer; the key is the tool, its argument and the wording."""
    tool = rng.choice(TOOLS)
    others = rng.sample([other for other in TOOLS if other is not tool], rng.choice((0, 1)))
    offered = rng.sample([tool, *others], 1 + len(others))
    phrasing = rng.randrange(len(tool.asks))
    value = tool.draw(rng)
    said = tool.asks[phrasing].format(x=value)
    slip = tool.draw(rng)
    return Task(
        kind=KIND,
        skill=tool.name,
        key=said,
        phrasing=phrasing,
        messages=user(said),
        answer=call_text(tool.name, {tool.argument: value}),
        wrong=call_text(tool.name, {"value": slip}),
        note=f'"{said}" needs {call_text(tool.name, {tool.argument: value})}',
        tools=tuple(entry.schema() for entry in offered),
    )
