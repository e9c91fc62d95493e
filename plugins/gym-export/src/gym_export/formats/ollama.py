"""The format of Ollama: a GGUF file, and a Modelfile with the chat template in the language of Ollama's templates.

Ollama does not run the templates of transformers. What a template writes around each message is measured: it is rendered with
marks in the place of what people write. A template that does more than to put something around messages is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gym_core import GymError
from gym_export.bounded_rendering import rendered
from gym_export.formats.gguf.format import FILE as WEIGHTS
from gym_export.formats.gguf.format import GGUFFormat
from gym_export.source import Source, render

FILE = "Modelfile"
LONGEST_CONTEXT = 8192
ROLES = ("system", "user", "assistant")
_MARK = "q7Zx{}k9W"


@dataclass(frozen=True)
class Turns:
    """What a chat template writes around messages."""

    around: Mapping[str, tuple[str, str]]  #: by role: before and behind what it says
    begins: str  #: before all, where there is a system message
    unasked: str  #: before all, where there is none: with the system message that a model has of its own
    answer: str  #: where an answer begins
    joined: bool = False  #: whether the user's first message goes on in the turn that the system message began

    def rendered(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Return what Ollama makes of messages."""
        system = messages[0]["role"] == "system"
        text = self.begins if system else self.unasked
        begun = self.joined and system
        for message in messages:
            before, behind = self.around[message["role"]]
            goes_on = begun and message["role"] == "user"
            text += ("" if goes_on else before) + message["content"] + behind
            begun = begun and not goes_on
        return text + self.answer


def measured(tokenizer: Any, where: str) -> Turns:
    """Return what a chat template writes around messages. Raises GymError where it does more than that."""

    def asked(*roles: str, prompt: bool = True) -> str:
        messages = [{"role": role, "content": _MARK.format(place)} for place, role in enumerate(roles)]
        return rendered(tokenizer, messages, prompt)

    def between(text: str, first: int, second: int) -> str:
        return text.partition(_MARK.format(first))[2].partition(_MARK.format(second))[0]

    try:
        single, bare = asked("user"), asked("user", prompt=False)
        answer = single.removeprefix(bare)
        talk = asked("user", "assistant", "user", "assistant", "user")
        whole = asked("system", "user")
    except Exception as error:  # a template raises what it likes
        raise _not_plain(where, f"it does not render a conversation: {str(error)[:100]}") from error
    opening = single.partition(_MARK.format(0))[0]
    before_user = _common_end(opening, between(talk, 1, 2), tokenizer.all_special_tokens)
    after_user = single.partition(_MARK.format(0))[2].removesuffix(answer)
    unasked = opening.removesuffix(before_user)
    before_assistant = between(talk, 0, 1).removeprefix(after_user)
    after_assistant = between(talk, 1, 2).removesuffix(before_user)
    joined = not between(whole, 0, 1).endswith(before_user)
    after_system = between(whole, 0, 1).removesuffix(before_user)
    turns = Turns(
        {
            "system": (whole.partition(_MARK.format(0))[0], after_system),
            "user": (before_user, after_user),
            "assistant": (before_assistant, after_assistant),
        },
        "",
        unasked,
        answer,
        joined,
    )
    checks = [("user",), ("system", "user"), ("user", "assistant", "user"), ("system", "user", "assistant", "user")]
    for roles in checks:
        messages = [{"role": role, "content": _MARK.format(place)} for place, role in enumerate(roles)]
        if turns.rendered(messages) != asked(*roles):
            raise _not_plain(where, f"it writes something else around {', '.join(roles)} together than around each")
    return turns


def _common_end(left: str, right: str, whole: Sequence[str]) -> str:
    """Return what both texts end in; it begins with no part of a token that is to stay whole."""
    size = next((at for at, pair in enumerate(zip(left[::-1], right[::-1], strict=False)) if pair[0] != pair[1]), None)
    size = min(len(left), len(right)) if size is None else size
    cuts = [(text, len(text) - size, text.find(token), token) for text in (left, right) for token in whole]
    inside = [at + len(token) - cut for text, cut, at, token in cuts if at >= 0 and at < cut < at + len(token)]
    return left[len(left) - size + max(inside, default=0) :]


def _not_plain(where: str, why: str) -> GymError:
    return GymError(
        f"the chat template cannot be said in Ollama's language: {why}",
        where=where,
        key="export",
        fix="export with `gguf`, and write the Modelfile by hand",
    )


def template_of(turns: Turns) -> str:
    """Return these turns in the language of Ollama's templates. Raises GymError where a text has no place in it."""
    texts = [turns.begins, turns.unasked, turns.answer, *(text for pair in turns.around.values() for text in pair)]
    if any("{{" in text or "}}" in text or '"""' in text for text in texts):
        raise _not_plain("Modelfile", "it writes braces or three quotation marks")
    (system, after_system), (user, after_user), (assistant, after_assistant) = (turns.around[role] for role in ROLES)
    begins, goes_on, opens = ("", "", user) if not turns.joined else (*_GOING_ON, _OPENED.format(user))
    return (
        f"{begins}{{{{ if .System }}}}{system}{{{{ .System }}}}{after_system}{goes_on}"
        f"{{{{ else }}}}{turns.unasked}{{{{ end }}}}"
        f'{{{{ range .Messages }}}}{{{{ if eq .Role "user" }}}}{opens}{{{{ .Content }}}}{after_user}'
        f'{{{{ else if eq .Role "assistant" }}}}{assistant}{{{{ .Content }}}}{after_assistant}{{{{ end }}}}{{{{ end }}}}'
        f"{turns.answer}"
    )


#: Where the user's first message goes on in the turn of the system message: nothing is written before it.
_GOING_ON = ("{{ $begun := false }}", "{{ $begun = true }}")
_OPENED = "{{{{ if $begun }}}}{{{{ $begun = false }}}}{{{{ else }}}}{}{{{{ end }}}}"
_BRANCH = re.compile(re.escape(_OPENED.format("\0")).replace("\0", "(.*)"), re.DOTALL)
_SHAPE = re.compile(
    r"\{\{ if \.System \}\}(.*)\{\{ \.System \}\}(.*)\{\{ else \}\}(.*)\{\{ end \}\}\{\{ range \.Messages \}\}"
    r'\{\{ if eq \.Role "user" \}\}(.*)\{\{ \.Content \}\}(.*)\{\{ else if eq \.Role "assistant" \}\}(.*)\{\{ \.Content \}\}(.*)'
    r"\{\{ end \}\}\{\{ end \}\}(.*)",
    re.DOTALL,
)


def read_back(text: str, where: str) -> Turns:
    """Return the turns that the template of a Modelfile writes. Raises GymError where it is none that is written here."""
    quoted = re.search(r'^TEMPLATE """(.*?)"""$', text, re.DOTALL | re.MULTILINE)
    written = quoted.group(1) if quoted else ""
    begins, goes_on = _GOING_ON
    joined = written.startswith(begins)
    found = _SHAPE.fullmatch(written.removeprefix(begins).replace(goes_on, "", 1) if joined else written)
    if found is None:
        raise GymError("its Modelfile has no template that can be read", where=where, fix="export again")
    system, after_system, unasked, user, after_user, assistant, after_assistant, answer = found.groups()
    opened = _BRANCH.fullmatch(user) if joined else None
    user = opened.group(1) if opened else user
    around = {"system": (system, after_system), "user": (user, after_user), "assistant": (assistant, after_assistant)}
    return Turns(around, "", unasked, answer, joined)


class OllamaFormat(GGUFFormat):
    """Writes both; the file is compared as a GGUF file is, and the template with what the model's own writes."""

    def check(self, source: Source) -> None:
        """Refuse what GGUF refuses, and templates that Ollama's language has no words for."""
        super().check(source)
        if source.tokenizer is None or not source.tokenizer.chat_template:
            raise GymError(
                "the model has no chat template", where=str(source.base), key="export", fix="export with `gguf`"
            )
        template_of(measured(source.tokenizer, str(source.base)))
        if self.config.system and '"""' in self.config.system:
            raise GymError("three quotation marks have no place in a Modelfile", key="export.system")

    def write(self, source: Source, into: Path) -> Mapping[str, Any]:
        """Write both files."""
        told = super().write(source, into)
        turns = measured(source.tokenizer, str(source.base))
        begins = self._words_begin(source)
        if begins and turns.unasked.startswith(begins):  # llama.cpp writes it before every text
            around = dict(turns.around)
            around["system"] = (around["system"][0].removeprefix(begins), around["system"][1])
            turns = replace(turns, around=around, unasked=turns.unasked.removeprefix(begins))
        context = self.config.num_ctx or min(source.config.max_position_embeddings, LONGEST_CONTEXT)
        lines = [f"FROM ./{WEIGHTS}", f'TEMPLATE """{template_of(turns)}"""', f"PARAMETER num_ctx {context}"]
        closing = turns.around["assistant"][
            1
        ].lstrip()  # what a template writes there, a model may have learned to write
        special = [token for token in source.tokenizer.all_special_tokens if closing.startswith(token)]
        stops = dict.fromkeys([*source.tokenizer.convert_ids_to_tokens([*source.stops]), *special])
        lines += [f'PARAMETER stop "{stop}"' for stop in stops if '"' not in stop and "\n" not in stop]
        lines += [f'SYSTEM """{self.config.system}"""'] if self.config.system else []
        (into / FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")
        return told

    def weights(self, source: Source, path: Path, told: Mapping[str, Any]) -> Mapping[str, Any]:
        """Compare the GGUF file, and what the Modelfile writes around the prompts."""
        found = super().weights(source, path, told)
        turns = read_back((path / FILE).read_text(encoding="utf-8"), str(path / FILE))
        begins, compared, strips = self._words_begin(source), 0, False
        for prompt in source.prompts:
            if prompt.messages:
                compared += 1
                wanted = render(source.tokenizer, prompt.messages)
                bare = [message | {"content": message["content"].strip()} for message in prompt.messages]
                said = [begins + turns.rendered(messages) for messages in (prompt.messages, bare)]
                strips = strips or wanted != said[0]
                if wanted not in said:
                    why = f"its Modelfile writes the {prompt.name} otherwise than the model's chat template"
                    raise GymError(why, where=str(path / FILE), fix="export again; if that fails too, report it")
        stripped = {"not_stripped_in_ollama": "space around messages"} if strips else {}
        return {**found, "modelfile_prompts": compared, **stripped}

    def _words_begin(self, source: Source) -> str:
        """Return what llama.cpp writes before every text that is not in the prompts of the Modelfile; empty for nothing."""
        words = self._words(source)
        opening = render(source.tokenizer, [{"role": "user", "content": "x"}]) or ""
        begins = source.tokenizer.bos_token if words is not None and words.begins else ""
        return begins if begins and opening.startswith(begins) else ""
