"""Rows of pairs, of judged answers and of judged steps, and prompts to answer."""

from __future__ import annotations

from typing import Any

from gym_axolotl.datasets.conversations import messages
from gym_axolotl.datasets.entry import Entry, Refused

WRITTEN = ("chatml", "llama3")  #: first parts of types that write turns in a way of their own, which are templates here
ASKED = {"intel": "question", "icr": "input", "prompt_pairs": "prompt", "ultra": "prompt", "argilla": "instruction"}
"""Second parts of types, by the column of the prompt."""
_CONVERSED = ("argilla_chat",)  #: second parts of types whose answers stand in whole conversations
_AS_THEY_ARE = "is left out, which takes texts as they are, and here a chat template writes them"
_CODE = "is code of yours, which is not run: write rows as {}, and leave it out"


def _prompt(column: str, answer: str | None = None) -> dict[str, Any]:
    """Return the format of a prompt in one column, with a system message in another."""
    return {"name": "alpaca", "prompt": column, "query": None, "response": answer, "system": "system"}


def pairs(entry: Entry, rewarding: bool) -> tuple[dict[str, Any], str | None]:
    """Return the format of pairs, and the template that their type means. Raises Refused for types that are not read."""
    kind = entry.take("type")
    sides = {"chosen": entry.take("field_chosen", "chosen"), "rejected": entry.take("field_rejected", "rejected")}
    told = {"name": "preference", **sides}
    if isinstance(kind, dict):
        fix = "leave it out for columns prompt, chosen and rejected, which the chat template writes"
        raise Refused("type", "prompts of pairs are not written as text", fix)
    if kind is None and not rewarding:
        fix = "set `type: chat_template.argilla` to have the chat template write prompt, chosen and rejected"
        raise Refused("type", _AS_THEY_ARE, fix)
    family, _, variant = str(kind or "").partition(".")
    if kind == "bradley_terry.chat_template" or (rewarding and kind == "chat_template"):
        return {**told, "prompt": _prompt("input")}, None
    if family == "chat_template" and variant in ("", "default"):
        return {**told, "prompt": messages(entry)}, None
    if kind is None or (family == "chat_template" and variant in ("argilla", *_CONVERSED)):
        entry.take("message_property_mappings"), entry.take("roles")
        return told, None
    if family in WRITTEN and variant in ASKED:
        return {**told, "prompt": _prompt(ASKED[variant])}, family
    if family in WRITTEN and variant in _CONVERSED:
        return told, family
    raise Refused(
        "type", _CODE.format("pairs"), "one of: chat_template.default, chat_template.argilla, chatml.intel, ..."
    )


def judged(entry: Entry) -> tuple[dict[str, Any], str | None]:
    """Return the format of judged answers, and the template that their type means. Raises Refused for other types."""
    kind = entry.take("type")
    if isinstance(kind, dict):
        fix = "leave it out for columns prompt, completion and label, which the chat template writes"
        raise Refused("type", "prompts of judged answers are not written as text", fix)
    if kind is None:
        fix = "set `type: chatml.ultra` or `llama3.ultra`, which read prompt, completion and label"
        raise Refused("type", _AS_THEY_ARE, fix)
    family, _, variant = str(kind).partition(".")
    if family in WRITTEN and variant in ASKED:
        return {"name": "feedback", "conversation": _prompt(ASKED[variant], "completion")}, family
    if family in WRITTEN and variant in _CONVERSED:
        return {"name": "feedback", "conversation": {"name": "messages", "messages": "completion"}}, family
    raise Refused("type", _CODE.format("judged answers"), "one of: chatml.ultra, llama3.ultra, chatml.argilla, ...")


def steps(entry: Entry) -> dict[str, Any]:
    """Return the format of judged steps. Raises Refused for what is not read so."""
    kind = entry.take("type", "stepwise_supervised")
    if kind != "stepwise_supervised":
        raise Refused("type", f"there is no `{kind}` of steps", "set it to stepwise_supervised")
    if entry.take("train_on_last_step_only"):
        raise Refused(
            "train_on_last_step_only", "all judged steps are learnt", "leave the other labels null in the rows"
        )
    if entry.take("max_completion_length"):
        raise Refused("max_completion_length", "a sample is cut as a whole", "leave it out, and set `sequence_len`")
    return {"name": "stepwise", "separator": entry.take("step_separator", "\n")}


def prompts(entry: Entry) -> dict[str, Any] | None:
    """Return the format of prompts; None where the columns tell. Raises Refused for code that makes them."""
    kind = entry.take("type")
    if kind is None:
        return None
    if kind in ("chat_template", "chat_template.default"):
        return messages(entry)
    raise Refused("type", _CODE.format("prompts"), "columns prompt and answer, or type: chat_template for messages")
