"""How tools on offer, and calls of them, are written in each format of tools. The texts are what models were trained on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import Any, NamedTuple

Tool = Mapping[str, Any]
Call = tuple[str, Any]  #: name and arguments


class ToolFormat(NamedTuple):
    """How tools are written."""

    offered: Callable[[Sequence[Tool], date], str]
    called: Callable[[Sequence[Call]], str]


_REACT = (
    "You have access to the following tools:\n{tools}Use the following format if using a tool:\n```\n"
    "Action: tool name (one of [{names}])\nAction Input: the input to the tool, in a JSON format representing the kwargs "
    '(e.g. ```{{"input": "hello world", "num_beams": 5}}```)\n```\n'
)
_LLAMA3 = (
    "Cutting Knowledge Date: December 2023\nToday Date: {day}\n\n"
    "You have access to the following functions. To call a function, please respond with JSON for a function call. "
    'Respond in the format {{"name": function name, "parameters": dictionary of argument name and its value}}. '
    "Do not use variables.\n\n{tools}"
)
_QWEN = (
    "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>{tools}\n</tools>\n\n"
    "For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n"
    '<tool_call>\n{{"name": <function-name>, "arguments": <args-json-object>}}\n</tool_call>'
)


def _bare(tool: Tool) -> Tool:
    found: Tool = tool["function"] if tool.get("type") == "function" else tool
    return found


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _react(tools: Sequence[Tool], day: date) -> str:
    """Describe each tool and its arguments in words."""
    texts = []
    for tool in map(_bare, tools):
        parameters = tool["parameters"]
        texts.append(f"> Tool Name: {tool['name']}\nTool Description: {tool.get('description', '')}\nTool Args:\n")
        for name, told in parameters["properties"].items():
            required = ", required" if name in parameters.get("required", []) else ""
            one_of = f", should be one of [{', '.join(told['enum'])}]" if told.get("enum") else ""
            each = f", where each item should be {told['items'].get('type', '')}" if told.get("items") else ""
            kind, words = told.get("type", ""), told.get("description", "")
            texts.append(f"  - {name} ({kind}{required}): {words}{one_of}{each}\n")
        texts.append("\n")
    return _REACT.format(tools="".join(texts), names=", ".join(_bare(tool)["name"] for tool in tools))


def _one_or_more(calls: Sequence[Call]) -> str:
    found = [{"name": name, "parameters": arguments} for name, arguments in calls]
    return _json(found[0] if len(found) == 1 else found)


FORMATS: dict[str, ToolFormat] = {
    "default": ToolFormat(
        _react,
        lambda calls: "\n".join(f"Action: {name}\nAction Input: {_json(arguments)}" for name, arguments in calls),
    ),
    "llama3": ToolFormat(
        lambda tools, day: _LLAMA3.format(
            day=day.strftime("%d %b %Y"), tools="".join(f"{_json(tool, 4)}\n\n" for tool in tools)
        ),
        _one_or_more,
    ),
    "mistral": ToolFormat(
        lambda tools, day: f"[AVAILABLE_TOOLS] {_json(list(tools))}[/AVAILABLE_TOOLS]",
        lambda calls: _json([{"name": name, "arguments": arguments} for name, arguments in calls]),
    ),
    "qwen": ToolFormat(
        lambda tools, day: _QWEN.format(tools="".join(f"\n{_json(tool)}" for tool in tools)),
        lambda calls: "\n".join(
            f"<tool_call>\n{_json({'name': name, 'arguments': arguments})}\n</tool_call>" for name, arguments in calls
        ),
    ),
}


def known() -> list[str]:
    """Return the names of the formats of tools."""
    return sorted(FORMATS)


def written(name: str) -> ToolFormat:
    """Return the format of this name. Raises ValueError where tools are not written so here."""
    if name not in FORMATS:
        raise ValueError(
            f"tools in the format `{name}` are not written here; `tool_format` may be {', '.join(known())}"
        )
    return FORMATS[name]
