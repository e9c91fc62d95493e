"""Rows of messages: `type: chat_template`, and the `sharegpt` of older files."""

from __future__ import annotations

from typing import Any

from gym_axolotl.datasets.entry import Entry, Refused, texts

TYPES = ("chat_template", "chat_template.load", "chat_template.default", "sharegpt")
_PARTS = {"user": "user", "assistant": "assistant", "system": "system_role", "tool": "observation"}
#: Role names that are understood beside those that are given.
_KNOWN = {
    "user": ("user", "human"),
    "assistant": ("assistant", "gpt"),
    "system": ("system", "developer"),
    "tool": ("tool", "observation", "function"),
}
_ALIKE = {"reasoning_content": ("reasoning_content", "reasoning", "thinking")}  #: what the same is called
_TURNS = (
    "turn",
    "all",
)  #: of end-of-turn tokens that are learnt: those of answers; `all` means no others where all is learnt


def messages(entry: Entry, kind: str = "chat_template") -> dict[str, Any]:
    """Return the format of rows of messages. Raises Refused for what is not read so."""
    old = kind == "sharegpt"
    told: dict[str, Any] = {"name": "messages"}
    told["messages"] = entry.take("field_messages", "conversations" if old else "messages")
    told |= _keys(entry, old)
    if (tools := entry.take("field_tools")) is not None:
        told["tools"] = tools
    told |= _roles(entry.mapping("roles"))
    thought = entry.take("field_thinking", "reasoning_content")
    if thought not in _ALIKE["reasoning_content"]:
        why = f"thoughts of a message are not read from `{thought}`"
        raise Refused("field_thinking", why, f"call them one of: {', '.join(_ALIKE['reasoning_content'])}")
    entry.take("template_thinking_key")  # a template that asks for thoughts under either name gets them
    _learnt(entry)
    return told


def _keys(entry: Entry, old: bool) -> dict[str, str]:
    """Return which keys of a message hold its role and its text."""
    usual = ("from", "value") if old else ("role", "content")
    mapped = entry.mapping("message_property_mappings")
    keys = {
        "role": entry.take("message_field_role") or mapped.pop("role", usual[0]),
        "content": entry.take("message_field_content") or mapped.pop("content", usual[1]),
    }
    for name, key in mapped.items():
        if key != name and key not in _ALIKE.get(name, ()):
            why = f"`{name}` of a message is not read from `{key}`"
            raise Refused("message_property_mappings", why, f"call it `{name}` in the rows")
    return {key: name for key, name in keys.items() if name != key}


def _roles(told: dict[str, Any]) -> dict[str, str]:
    """Return the names of roles, one for each part beside those that are known anyway."""
    named: dict[str, str] = {}
    for part, names in told.items():
        if part not in _PARTS:
            raise Refused("roles", f"there is no part `{part}`", f"one of: {', '.join(_PARTS)}")
        odd = [name for name in texts("roles", names) if name not in _KNOWN[part]]
        if len(odd) > 1:
            why = f"`{part}` has the names {', '.join(odd)}; one beside {', '.join(_KNOWN[part])} is read"
            raise Refused("roles", why, "give them one name in the rows")
        if odd:
            named[_PARTS[part]] = odd[0]
    return named


def _learnt(entry: Entry) -> None:
    """Take what says which parts are learnt. Raises Refused for other parts than answers with the tokens that end them."""
    named = "roles_to_train" in entry.left
    roles = entry.names("roles_to_train")
    if named and (not roles or not {*roles} <= {*_KNOWN["assistant"]}):
        raise Refused(
            "roles_to_train", "answers are learnt", "leave it out, or set `train_on_inputs: true` to learn all"
        )
    for key in ("train_on_eos", "train_on_eot"):
        told = entry.take(key, "turn")
        if told != "turn":
            raise Refused(
                key, f"each answer is learnt with the token that ends it, so there is no `{told}`", "leave it out"
            )
    said = entry.take("message_field_training", "train")
    if said not in ("train", "weight"):
        raise Refused(
            "message_field_training", f"`{said}` is not looked at", "call it `train` in the rows: true or false"
        )
