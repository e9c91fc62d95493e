"""What models are asked, in a language: texts in files, and blocks that keep what others wrote apart from instructions."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from gym_core.errors import GymError
from gym_core.files import expanded
from gym_training_free.endpoint.chat import Message
from gym_training_free.experience.library import ExperienceLibrary

#: The texts of a language, each with the places that it must have.
TEXTS: dict[str, set[str]] = {
    "worker": {"experiences"},
    "summary": set(),
    "advantage": {"count", "words"},
    "group_update": {"words"},
    "batch_update": {"words"},
    "repair": {"fault"},
    "judge": {"rubric"},
}
_PLACE = re.compile(r"\{\{(\w+)\}\}")


@dataclass(frozen=True)
class Prompts:
    """The texts of one language."""

    texts: Mapping[str, str]

    @classmethod
    def load(cls, name: str) -> Prompts:
        """Read the texts of a language that comes along, or of a folder. Raises GymError where one is missing or unfit."""
        own = files(__package__) / "prompts"
        folder: Traversable = own / name if re.fullmatch(r"\w+", name) and (own / name).is_dir() else expanded(name)
        texts = {}
        for text, places in TEXTS.items():
            try:
                texts[text] = (folder / f"{text}.txt").read_text(encoding="utf-8").strip()
            except OSError:
                known = ", ".join(sorted(one.name for one in own.iterdir() if one.is_dir()))
                fix = f"copy those of a language that comes along ({known}), and translate them"
                raise GymError(f"has no {text}.txt", where=name, key="algorithm.prompts", fix=fix) from None
            if (found := set(_PLACE.findall(texts[text]))) != places:
                wanted = ", ".join(f"{{{{{place}}}}}" for place in sorted(places)) or "no place to fill"
                raise GymError(
                    f"must have {wanted}, and has {sorted(found)}", where=f"{name}/{text}.txt", key="algorithm.prompts"
                )
        return cls(texts)

    def fill(self, text: str, **values: object) -> str:
        """Return a text with values in its places; what stands in a value is never a place itself."""
        return _PLACE.sub(lambda match: str(values[match.group(1)]), self.texts[text])

    def fingerprint(self) -> str:
        """Return a hash of all texts."""
        return hashlib.sha256(json.dumps(dict(self.texts), sort_keys=True).encode()).hexdigest()[:16]

    def asked(self, text: str, blocks: Sequence[str], **values: object) -> list[Message]:
        """Return messages: the instruction alone as the system, all that others wrote as the user."""
        return [
            {"role": "system", "content": self.fill(text, **values)},
            {"role": "user", "content": "\n\n".join(blocks)},
        ]

    def with_experiences(
        self, messages: Sequence[Message], library: ExperienceLibrary, chosen: Sequence[str] | None = None
    ) -> list[Message]:
        """Return the messages of a question whose system message holds the library, or the experiences of these ids."""
        lines = library.lines(chosen)
        if not lines:
            return list(messages)
        told = self.fill("worker", experiences=lines)
        if messages and messages[0]["role"] == "system":
            before = messages[0].get("content") or ""
            parts = isinstance(before, list | tuple)
            both = [*before, {"type": "text", "text": told}] if parts else f"{before}\n\n{told}".lstrip("\n")
            return [{**messages[0], "content": both}, *messages[1:]]
        return [{"role": "system", "content": told}, *messages]


def block(name: str, text: str) -> str:
    """Return text that others wrote between marks that it cannot hold: they bear a hash of itself."""
    code = hashlib.sha256(f"{name}\0{text}".encode("utf-8", "replace")).hexdigest()[:12]
    return f"[[{name} {code}]]\n{text}\n[[end {code}]]"


def shown(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return a conversation as text, for whoever reads about it."""
    if len(messages) == 1:
        return str(messages[0].get("content") or "")
    return "\n\n".join(f"{one['role']}: {one.get('content') or ''}" for one in messages)
