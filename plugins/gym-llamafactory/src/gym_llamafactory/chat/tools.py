"""How tools on offer, and calls of them, are written in each format of tools. The texts, `tools.json`, are what models learnt."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from gym_llamafactory.chat import formats

if TYPE_CHECKING:
    from gym_llamafactory.chat import LlamaFactory

Tool = Mapping[str, Any]
Call = tuple[str, Any]  #: name and arguments


class ToolFormat(NamedTuple):
    """How tools are written."""

    listed: Callable[[Sequence[Tool]], str]
    """Tools on offer, as they stand in the text of the format."""
    called: Callable[[Sequence[Call]], str]


@cache
def _texts() -> dict[str, str]:
    """Return what stands around tools on offer: `{{tools}}`, their `{{names}}`, the `{{day}}`."""
    texts: dict[str, str] = json.loads((files("gym_llamafactory.chat") / "tools.json").read_text(encoding="utf-8"))
    return texts


def _bare(tool: Tool) -> Tool:
    found: Tool = tool["function"] if tool.get("type") == "function" else tool
    return found


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _text(value: Any) -> str:
    """Write the value of an argument: a text as it is."""
    return value if isinstance(value, str) else _json(value)


def _each(write: Callable[[Tool], str], between: str = "") -> Callable[[Sequence[Tool]], str]:
    """Return what writes tools one after the other."""
    return lambda tools: between.join(map(write, tools))


def _tagged(begin: str, argument: str, end: str) -> Callable[[Sequence[Call]], str]:
    """Return what writes each call with its arguments one by one: `{}` is its name, in `argument` that and the value."""
    return lambda calls: "\n".join(
        begin.format(name) + "".join(argument.format(key, _text(value)) for key, value in arguments.items()) + end
        for name, arguments in calls
    )


def _in_words(tools: Sequence[Tool]) -> str:
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
    return "".join(texts)


def _glm4(tool: Tool) -> str:
    """Show a tool under its name, with how to call it."""
    tool = _bare(tool)
    return f"\n\n## {tool['name']}\n\n{_json(tool, 4)}\n{_texts()['glm4, each']}"


def _gemma4(tool: Tool) -> str:
    """Declare a tool as Gemma 4 has it: no quotes around keys, texts between tokens."""
    tool = _bare(tool)
    parts = [_pair("description", tool.get("description", ""))]
    parameters = tool.get("parameters")
    if parameters:
        told = [
            f"{name}:{{{','.join(_told(schema, 'description') + _kind(schema))}}}"
            for name, schema in (parameters.get("properties") or {}).items()
        ]
        required = ",".join(_gemma4_value(name) for name in parameters.get("required") or ())
        inner = [f"properties:{{{','.join(told)}}}"] if told else []
        inner += [f"required:[{required}]"] if required else []
        parts.append(f"parameters:{{{','.join(inner + _kind(parameters))}}}")
    response = tool.get("response")
    if response:
        kind = _kind(response) if str(response.get("type", "")).upper() == "OBJECT" else []
        parts.append(f"response:{{{','.join(_told(response, 'description') + kind)}}}")
    return f"declaration:{tool['name']}{{{','.join(parts)}}}"


def _pair(key: str, value: str) -> str:
    return f"{key}:{_gemma4_value(value)}"


def _told(schema: Mapping[str, Any], key: str) -> list[str]:
    return [_pair(key, schema[key])] if schema.get(key) else []


def _kind(schema: Mapping[str, Any]) -> list[str]:
    return [_pair("type", str(schema["type"]).upper())] if schema.get("type") else []


def _gemma4_value(value: Any) -> str:
    """Write the value of an argument as Gemma 4 has it."""
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_gemma4_value(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_gemma4_value, value)) + "]"
    return _json(value)


def _one_or_more(calls: Sequence[Call]) -> str:
    found = [{"name": name, "parameters": arguments} for name, arguments in calls]
    return _json(found[0] if len(found) == 1 else found)


def _alone(calls: Sequence[Call]) -> str:
    """Write the one call that GLM-4 makes at a time. Raises ValueError where there are several."""
    if len(calls) > 1:
        raise ValueError("several tool calls in one message, and this format has one at a time")
    return "".join(f"{name}\n{_json(arguments)}" for name, arguments in calls)


def _as_python(calls: Sequence[Call]) -> str:
    def valued(value: Any) -> str:
        return f'"{value}"' if isinstance(value, str) else _json(value)

    found = (f"{name}({', '.join(f'{key}={valued(value)}' for key, value in given.items())})" for name, given in calls)
    return f"<|tool_call_start|>[{', '.join(found)}]<|tool_call_end|>"


def _objects(calls: Sequence[Call], begin: str = "", end: str = "") -> list[str]:
    return [f"{begin}{_json({'name': name, 'arguments': arguments})}{end}" for name, arguments in calls]


def _in_tags(calls: Sequence[Call]) -> str:
    return "\n".join(_objects(calls, "<tool_call>\n", "\n</tool_call>"))


def _gemma4_calls(calls: Sequence[Call]) -> str:
    return "".join(f"<|tool_call>call:{name}{_gemma4_value(dict(given))}<tool_call|>" for name, given in calls)


def _actions(calls: Sequence[Call]) -> str:
    return "\n".join(f"Action: {name}\nAction Input: {_json(arguments)}" for name, arguments in calls)


def _all_bare(tools: Sequence[Tool]) -> str:
    return _json([_bare(tool) for tool in tools])


_LINES = _each(lambda tool: f"\n{_json(tool)}")
FORMATS: dict[str, ToolFormat] = {
    "default": ToolFormat(_in_words, _actions),
    "gemma4": ToolFormat(_each(_gemma4, "\n"), _gemma4_calls),
    "glm4": ToolFormat(_each(_glm4), _alone),
    "glm4_moe": ToolFormat(
        _LINES, _tagged("\n<tool_call>{}", "\n<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>", "")
    ),
    "lfm2": ToolFormat(_all_bare, _as_python),
    "ling": ToolFormat(_LINES, _in_tags),
    "llama3": ToolFormat(_each(lambda tool: f"{_json(tool, 4)}\n\n"), _one_or_more),
    "minimax1": ToolFormat(
        _each(lambda tool: f"{_json(_bare(tool))}\n"),
        lambda calls: "\n".join(["<tool_calls>", *_objects(calls), "</tool_calls>"]),
    ),
    "minimax2": ToolFormat(
        _each(lambda tool: f"<tool>{_json(_bare(tool))}</tool>\n"),
        _tagged('<invoke name="{}">', '\n<parameter name="{}">{}</parameter>', "\n</invoke>"),
    ),
    "mistral": ToolFormat(
        lambda tools: _json(list(tools)),
        lambda calls: _json([{"name": name, "arguments": arguments} for name, arguments in calls]),
    ),
    "phi4_mini": ToolFormat(_all_bare, _actions),
    "qwen": ToolFormat(_LINES, _in_tags),
    "qwen3_5": ToolFormat(
        _each(lambda tool: f"\n{_json(_bare(tool))}"),
        _tagged("<tool_call>\n<function={}>", "\n<parameter={}>\n{}\n</parameter>", "\n</function>\n</tool_call>"),
    ),
    # The name of the function is left open here, as LLaMA-Factory writes it.
    "seed_oss": ToolFormat(
        lambda tools: f"\n{_all_bare(tools)}",
        _tagged(
            "\n<seed:tool_call>\n<function={}", "\n<parameter={}>{}</parameter>", "\n</function>\n</seed:tool_call>"
        ),
    ),
}


def known() -> list[str]:
    """Return the names of the formats of tools."""
    return sorted(FORMATS)


def dated(config: LlamaFactory) -> bool:
    """Return whether the format of tools that a template has tells the day."""
    form = config.tool_format or (formats.named(config.format).tools if config.format else "default")
    return "{{day}}" in _texts()[form]


def offered(name: str, tools: Sequence[Tool], day: date) -> str:
    """Return what a format says of tools on offer; `day` is today."""
    values = {"{{names}}": ", ".join(_bare(tool)["name"] for tool in tools), "{{day}}": day.strftime("%d %b %Y")}
    before, _, after = _texts()[name].partition("{{tools}}")
    for mark, value in values.items():
        before, after = before.replace(mark, value), after.replace(mark, value)
    return before + FORMATS[name].listed(tools) + after


def called(name: str, calls: Sequence[Call]) -> str:
    """Return calls as a format writes them. Raises ValueError where it cannot."""
    return FORMATS[name].called(calls)
