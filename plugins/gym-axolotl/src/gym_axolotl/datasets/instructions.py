"""Rows of an instruction and its answer that are written as plain text, and rows of text alone."""

from __future__ import annotations

from typing import Any

from gym_axolotl.datasets.entry import Entry, Refused

STYLES: dict[str, dict[str, str]] = {
    "instruct": {},
    "chat": {
        "format": "USER: {instruction}\n{input}\nASSISTANT:",
        "no_input_format": "USER: {instruction}\nASSISTANT:",
        "system_format": "SYSTEM: {system}\n",
    },
    "chatml": {
        "format": "<|im_start|>user\n{instruction}\n{input}<|im_end|>\n<|im_start|>assistant\n",
        "no_input_format": "<|im_start|>user\n{instruction}<|im_end|>\n<|im_start|>assistant\n",
        "system_format": "<|im_start|>system\n{system}<|im_end|>\n",
    },
    "phi": {
        "format": "<|user|>\n{instruction}<|end|>{input}<|assistant|>",
        "no_input_format": "<|user|>\n{instruction}<|end|>\n<|assistant|>\n",
        "system_format": "<|system|>\n{system}<|end|>\n",
    },
}
"""How `alpaca:chat` and its like write prompts."""
COLUMNS: dict[str, dict[str, Any]] = {
    "alpaca": {},
    "gpteacher": {"output": "response"},
    "jeopardy": {"instruction": "question", "input": "category", "output": "answer", "answer_prefix": "what is "},
    "oasst": {"instruction": "INSTRUCTION", "input": None, "output": "RESPONSE"},
}
"""Types by the columns that they read."""
_OF_TYPE = {
    "field_instruction": "instruction",
    "field_input": "input",
    "field_output": "output",
    "field_system": "system",
    "format": "format",
    "no_input_format": "no_input_format",
    "system_format": "system_format",
    "system_prompt": "system_prompt",
}
#: What a type means that is written out, and leaves the key out.
_USUAL = {
    "format": "{instruction} {input} ",
    "no_input_format": "{instruction} ",
    "system": "system",
    "system_format": "{system}",
    "system_prompt": "",
    "no_input_system_prompt": None,
}
TEXTS = ("completion", "pretrain")  #: types of rows that are text


def instruct(name: str, end: str | None) -> dict[str, Any] | None:
    """Return the format of a named type; `end` is the token that ends an answer. None where there is no such type."""
    base, _, style = name.partition(":")
    if base not in COLUMNS:
        return None
    if (style or "instruct") not in STYLES:
        raise Refused("type", f"there is no style `{style}`", f"one of: {', '.join(STYLES)}")
    return _with({"name": "axolotl_instruct", **COLUMNS[base], **STYLES[style or "instruct"]}, end)


def written_out(type_: dict[str, Any], end: str | None) -> dict[str, Any]:
    """Return the format of a type that the file writes out. Raises Refused for a key that it has not."""
    told = {key: value for key, value in type_.items() if value is not None}
    if unknown := [key for key in told if key not in _OF_TYPE]:
        raise Refused("type", f"`{unknown[0]}` is no key of a type", f"one of: {', '.join(_OF_TYPE)}")
    options = {_OF_TYPE[key]: value for key, value in told.items()}
    return _with({"name": "axolotl_instruct", **_USUAL, **options}, end)


def _with(options: dict[str, Any], end: str | None) -> dict[str, Any]:
    return options | ({"end": end} if end else {})


def text(entry: Entry) -> dict[str, Any]:
    """Return the format of rows that are text."""
    column = entry.take("field") or entry.take("text_column") or "text"
    if entry.take("skip"):
        raise Refused("skip", "rows are read from the first on", "leave it out")
    return {"name": "text", "text": column}
