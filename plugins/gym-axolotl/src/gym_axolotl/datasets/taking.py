"""Takes the lists of datasets of a file, and says in their place which sources they are and how rows are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gym_axolotl.datasets import conversations, instructions, judged
from gym_axolotl.datasets.entry import Entry, Refused
from gym_axolotl.datasets.sources import located
from gym_axolotl.datasets.templates import template
from gym_core.dialect import mapping_of
from gym_core.errors import Problem, RecipeError
from gym_core.sections import Findings

LISTS = ("datasets", "test_datasets", "pretraining_dataset")
SHAPES = {
    "dpo": "pair", "ipo": "pair", "orpo": "pair", "simpo": "pair", "kto": "judged", "grpo": "prompt", "gdpo": "prompt",
}  # fmt: skip
"""What rows are, by `rl`."""
SPELT = ("text", "instruct", "segments")  #: kinds of rows in which special tokens that are spelt out are these tokens


class _Rows:
    """What was found out about the rows of a file."""

    def __init__(self, flat: Mapping[str, Any]) -> None:
        self.rewarding = bool(flat.get("reward_model"))
        steps = "steps" if flat.get("process_reward_model") else ""
        self.shape = steps or ("pair" if self.rewarding else SHAPES.get(str(flat.get("rl")).lower(), ""))
        self.end: str | None = flat.get("special_tokens.eos_token")
        self.kinds: dict[str, Entry] = {}
        self.templates: list[Any] = []

    def read_as(self, entry: Entry) -> dict[str, Any] | None:
        """Return the format of an entry. Raises Refused for what is not read."""
        named, family = None, None
        for key in ("chat_template", "conversation"):
            named = entry.take(key) or named
        text = entry.take("chat_template_jinja")
        if named or text:
            try:
                self.templates.append(template(named, text))
            except ValueError as error:
                raise Refused("chat_template", str(error)) from None
        if self.shape == "pair":
            told, family = judged.pairs(entry, self.rewarding)
        elif self.shape == "judged":
            told, family = judged.judged(entry)
        elif self.shape:
            return judged.steps(entry) if self.shape == "steps" else judged.prompts(entry)
        else:
            return self._learnt(entry)
        self.templates += [family] if family else []
        return told

    def _learnt(self, entry: Entry) -> dict[str, Any]:
        kind = entry.take("type", "pretrain" if entry.path[0] == "pretraining_dataset" else None)
        if isinstance(kind, dict):
            return self._of("instruct", entry, instructions.written_out(kind, self.end))
        if kind in conversations.TYPES:
            return self._of("chat", entry, {**conversations.messages(entry, kind), "system": "system"})
        if kind in instructions.TEXTS:
            return self._of("text", entry, instructions.text(entry))
        if kind == "input_output":
            return self._of("segments", entry, {"name": "segments"})
        if kind is None:
            raise Refused("type", "rows that are tokens already are not read", "name rows of text, and set `type`")
        if told := instructions.instruct(str(kind), self.end):
            return self._of("alpaca" if kind == "alpaca" else "instruct", entry, told)
        fix = (
            "write the type out: `type: {field_instruction: ..., field_output: ..., format: ...}`, or set chat_template"
        )
        raise Refused("type", f"there is no `{kind}` here", fix)

    def _of(self, kind: str, entry: Entry, told: dict[str, Any]) -> dict[str, Any]:
        self.kinds.setdefault(kind, entry)
        return told


def taken(sections: dict[str, Any], flat: dict[str, Any], found: Findings) -> None:
    """Write sources into the lists of a file, the template into `chat_template`, and choose `pretrain` for rows of text.

    Raises RecipeError for an algorithm of which nothing is here.
    """
    if flat.get("rl") == "ebft":
        fix = "set `rl: grpo` to learn from rewards, or leave it out to learn the answers themselves"
        raise RecipeError("is an algorithm that only axolotl has", where=found.where(("rl",)), key="rl", fix=fix)
    rows = _Rows(flat)
    for name in LISTS:
        listed = flat.pop(name, None)
        if listed is not None:
            flat[name] = [
                source for number, raw in _listed(listed) for source in _sources(rows, raw, (name, number), found)
            ]
    if flat.get("pretraining_dataset") and flat.get("streaming") is None:
        flat["streaming"] = True
    if "text" in rows.kinds and len(rows.kinds) > 1:
        why = "text is learnt by itself, and other rows of this file are conversations"
        rows.kinds["text"].problem(found, Refused("type", why, "train on them one after the other, in two files"))
    elif "text" in rows.kinds:
        sections.setdefault("algorithm", "pretrain")
    if {"alpaca", *SPELT} & rows.kinds.keys():
        mapping_of(sections, "data").setdefault("split_special_tokens", False)
    _written(rows, flat, found)


def _listed(listed: Any) -> list[tuple[int, Any]]:
    return list(enumerate(listed if isinstance(listed, list) else [listed]))


def _sources(rows: _Rows, raw: Any, path: tuple[str, int], found: Findings) -> list[dict[str, Any]]:
    """Return the sources of an entry, after noting what is wrong with it."""
    entry = Entry(raw if isinstance(raw, Mapping) else {"path": raw}, path)
    places = [{"name": "named", "path": str(entry.left.get("path"))}]
    try:
        places = located(entry)
        told = rows.read_as(entry)
    except Refused as error:
        entry.problem(found, error)
        return places
    entry.finish(found)
    return [{**place, "read_as": told} if told else place for place in places]


def _written(rows: _Rows, flat: dict[str, Any], found: Findings) -> None:
    """Write the template of all rows into `chat_template`; left out, it is the model's own."""
    name, text = flat.pop("chat_template", None), flat.pop("chat_template_jinja", None)
    try:
        whole = template(name, text)
    except ValueError as error:
        found.problems.append(Problem(str(error), found.where(("chat_template",)), "chat_template"))
        return
    told = [each for each in (*rows.templates, whole) if each is not None]
    if any(each != told[0] for each in told):
        why = "datasets of one file are written in one way, and here in several"
        found.problems.append(Problem(why, found.where(("datasets",)), "datasets", "name one `chat_template`"))
    elif told:
        flat["chat_template"] = told[0]
    elif rows.kinds.keys() == {"alpaca"}:
        flat["chat_template"] = "alpaca"
