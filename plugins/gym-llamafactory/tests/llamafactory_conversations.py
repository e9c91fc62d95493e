"""The conversations by which templates are compared, and what names a sequence of ids with its mask."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from gym_llamafactory.chat.formats import known
from gym_llamafactory.chat.formats import named as format_named
from gym_testkit import tiny

TOOL = {
    "name": "weather",
    "description": "Tells the weather.",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Where."},
            "unit": {"type": "string", "enum": ["C", "F"]},
            "days": {"type": "array", "items": {"type": "integer"}},
        },
        "required": ["city"],
    },
}
CALL = {"name": "weather", "arguments": {"city": "Köln", "days": [1, 2]}}
ASKED: dict[str, Any] = {"role": "user", "content": "What is two and two?"}
SAID: dict[str, Any] = {"role": "assistant", "content": "Four, I think."}
THOUGHT: dict[str, Any] = {"role": "assistant", "content": "<think>\nSix?\n</think>\n\nSix for sure."}
SYSTEM = "Be brief.\nBe kind."
TURNS = [ASKED, SAID, {"role": "user", "content": "And three and three?"}, THOUGHT, ASKED, SAID]
TOOLS = [
    {"role": "user", "content": "How is the weather?"},
    {"role": "function", "content": json.dumps(CALL)},
    {"role": "observation", "content": '{"sun": true}'},
    {"role": "assistant", "content": "The sun is out."},
]
#: By name: messages, system message, tools, cutoff, what is trained on.
CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], str, list[dict[str, Any]], int, str]] = {
    "one turn": ([ASKED, SAID], "", [], 2048, "assistant"),
    "system": ([ASKED, SAID], SYSTEM, [], 2048, "assistant"),
    "turns": (TURNS, SYSTEM, [], 2048, "assistant"),
    "last": (TURNS, "", [], 2048, "last"),
    "tools": (TOOLS, "", [TOOL], 4096, "assistant"),
    "tools and system": (TOOLS, SYSTEM, [TOOL], 4096, "assistant"),
    "cut": (
        [{"role": "user", "content": "hello " * 30}, {"role": "assistant", "content": "yes " * 40}, ASKED, SAID],
        "",
        [],
        220,
        "assistant",
    ),
}


def tokenizer_in(folder: Path) -> Path:
    """Write a tiny model whose tokenizer has every token that ends a turn, and joins characters that meet where texts do."""
    model = tiny.write_model(folder, extra=("bos_token",))
    path = model / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary, added = tokenizer["model"]["vocab"], tokenizer["added_tokens"]
    for pair in (":F", "ĊF", "]Ġ"):
        vocabulary[pair] = 1000 + len(vocabulary)
        tokenizer["model"]["merges"].append(list(pair))
    there = {token["content"] for token in added}
    forms = [format_named(name) for name in known()]
    slots = [
        slot for form in forms for part in (form.prefix, form.system, form.user, form.observation) for slot in part
    ]
    wanted = {token for form in forms for token in form.stop_words}
    wanted |= {slot["token"] for slot in slots if not isinstance(slot, str) and "token" in slot}
    for token in sorted(wanted - there):
        added.append({**added[0], "id": 2000 + len(added), "content": token})
    path.write_text(json.dumps(tokenizer))
    return model


def named(ids: list[int], trained: list[bool]) -> str:
    """Return what names ids and their mask."""
    return hashlib.sha256(json.dumps([ids, [int(each) for each in trained]]).encode()).hexdigest()[:16]
