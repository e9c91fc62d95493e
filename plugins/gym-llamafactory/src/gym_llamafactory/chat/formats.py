"""The table of formats: what stands around each message, as data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from gym_data.tokenizer import Tokenizer
    from gym_llamafactory.chat import LlamaFactory

Slot = str | Mapping[str, str]
"""A text with `{{content}}`, a token (`{"token": "..."}`), or one by its role (`{"role": "eos_token"}`)."""
Slots = Sequence[Slot]
CONTENT = "{{content}}"
SLOT = "{{%s}}"  #: by medium, what the processor of the model takes for one
_PLAIN: Slots = (CONTENT,)


@dataclass(frozen=True)
class ChatFormat:
    """What stands around the messages of a conversation."""

    user: Slots = _PLAIN
    assistant: Slots = (CONTENT, {"role": "eos_token"})
    system: Slots = _PLAIN
    function: Slots = ()  #: a call of tools
    observation: Slots = ()  #: what a tool answered
    prefix: Slots = ()  #: before everything
    tools: str = "default"  #: how tools on offer are written, see `gym_llamafactory.chat.tools`
    calls: str = "default"  #: how calls are written
    default_system: str = ""
    stop_words: Sequence[str] = ()
    thought_words: Sequence[str] = ("<think>\n", "\n</think>\n\n")
    media: Mapping[str, str] = field(default_factory=dict)
    """By medium that is read, what stands for one, where `{{image}}`... is what the processor of the model takes for it."""
    efficient_eos: bool = False  #: the end-of-text token stands once, behind the last answer
    replace_eos: bool = False  #: the first stop word is the end-of-text token
    behaves: Literal["", "system_in_user", "reasoning", "reasoning_end", "tools_stripped"] = ""

    @property
    def reasons(self) -> bool:
        """Whether answers begin with a thought."""
        return self.behaves in ("reasoning", "reasoning_end")

    @property
    def bare_answer(self) -> Slots:
        """Return an answer with nothing around it but the token that closes it, where one stands behind each."""
        return _PLAIN if self.efficient_eos else (CONTENT, {"role": "eos_token"})

    @property
    def empty_thought(self) -> str:
        """Return what stands for a thought that an answer does not have."""
        return "".join(self.thought_words[self.behaves == "reasoning_end" :])


@cache
def _table() -> dict[str, dict[str, Any]]:
    table: dict[str, dict[str, Any]] = json.loads(
        (files("gym_llamafactory.chat") / "formats.json").read_text(encoding="utf-8")
    )
    return table


def known() -> list[str]:
    """Return the names of all formats."""
    return sorted(_table())


def named(name: str) -> ChatFormat:
    """Return the format of this name."""
    row = _table()[name]
    found = ChatFormat(**row)
    if "assistant" not in row:
        found = replace(found, assistant=found.bare_answer)
    return replace(found, function=found.function or found.assistant, observation=found.observation or found.user)


def ends(name: str | None) -> list[str]:
    """Return the token that ends a turn of a format, where it is one by name; the tokenizer must have it."""
    row = _table()[name] if name else {}
    return list(row["stop_words"][:1]) if row.get("replace_eos") else []


def told(tokenizer: Tokenizer) -> ChatFormat:
    """Return the format that the model's own chat template is read as: what it writes around one message of each role.

    A model without a chat template has messages stand as they are, one behind the other.
    """
    if "default" not in tokenizer.templates:
        return replace(named("empty"), function=(CONTENT,))
    prefix = tokenizer.decode(tokenizer.document_start)
    user, empty = ({"role": "user", "content": CONTENT}, {"role": "system", "content": ""})
    answer = {"role": "assistant", "content": CONTENT}
    system = tokenizer.render([{"role": "system", "content": CONTENT}])[len(prefix) :]
    bare = tokenizer.render([empty, user], generation_prompt=True)[len(prefix) :]
    asked = tokenizer.render([user], generation_prompt=True)[len(prefix) :]
    answered = tokenizer.render([user, answer])[len(prefix) + len(asked) :]
    reasons = "<think>" in answered
    answered = answered.replace("<think>", "").replace("</think>", "").lstrip("\n")
    default = _added(bare, asked) if len(asked) > len(bare) else ""
    if default:
        asked = asked[len(system.replace(CONTENT, default, 1)) :]
    slots = {"user": asked, "assistant": answered, "system": system, "function": answered, "observation": asked}
    return ChatFormat(
        **{key: (text,) for key, text in slots.items()},  # type: ignore[arg-type]
        prefix=(prefix,) if prefix else (),
        default_system=default,
        behaves="reasoning" if reasons else "",
    )


def _added(short: str, long: str) -> str:
    """Return the characters of the longer text at which it leaves the shorter one."""
    at, found = 0, ""
    for character in long:
        if at < len(short) and short[at] == character:
            at += 1
        elif at < len(short):
            found += character
    return found


def text(config: LlamaFactory) -> str | None:
    """Return the jinja text of a format, for those who generate; None where it is the model's own.

    Roles that it has: system, user, assistant, tool. Tools on offer and calls are not written. With `enable_thinking: false` an
    empty thought stands before an answer, as where that is how it was learnt.
    """
    if config.format is None:
        return None
    form = named(config.format)
    system = f"{{% set system = {json.dumps(form.default_system)} %}}{{% set turns = messages %}}"
    given = (
        "{% if messages and messages[0]['role'] == 'system' %}"
        "{% set system = messages[0]['content'] %}{% set turns = messages[1:] %}{% endif %}"
    )
    parts = {"user": form.user, "assistant": form.assistant, "tool": form.observation}
    before = (
        "" if form.behaves == "system_in_user" else f"{{% if system %}}{_jinja(form.system, 'system')}{{% endif %}}"
    )
    begin = "{% set content = message['content'] %}"
    if form.behaves == "system_in_user":
        whole = _jinja(form.system[:1], "system", " ~ ")
        begin += f"{{% if loop.first and system %}}{{% set content = {whole} ~ content %}}{{% endif %}}"
    said = "".join(
        f"{{% {'if' if number == 0 else 'elif'} message['role'] == '{role}' %}}{_jinja(slots, 'content')}"
        for number, (role, slots) in enumerate(parts.items())
    )
    turns = f"{{% for message in turns %}}{begin}{said}{{% endif %}}{{% endfor %}}"
    thought = f"{{{{ {json.dumps(form.empty_thought)} }}}}"
    unthinking = f"{{% if add_generation_prompt and not enable_thinking | default(true) %}}{thought}{{% endif %}}"
    return f"{system}{given}{_jinja(form.prefix, '')}{before}{turns}{unthinking if form.reasons else ''}"


def _jinja(slots: Slots, content: str, join: str = "") -> str:
    """Write slots as jinja: outputs one after the other, or with `join` one expression."""
    found = []
    for slot in slots:
        if isinstance(slot, str):
            before, mark, after = slot.partition(CONTENT)
            found += [json.dumps(part) for part in (before,) if part] + ([content] if mark else [])
            found += [json.dumps(after)] if after else []
        else:
            found.append(slot.get("role") or json.dumps(slot["token"]))
    return join.join(found) if join else "".join(f"{{{{ {each} }}}}" for each in found)
