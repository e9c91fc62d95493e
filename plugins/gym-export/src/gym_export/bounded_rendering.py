"""Chat templates of what is exported: foreign code, tried under bounds before those read it who set none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2.exceptions import TemplateError

from gym_data.chat.render import ChatTemplate


def rendered(tokenizer: Any, messages: Sequence[Mapping[str, str]], prompt: bool = True) -> str:
    """Return what transformers makes of messages, with `prompt` up to where an answer begins.

    Raises TemplateError where the template refuses them, or takes more time or memory than a template may: transformers, and the
    binding of llama.cpp where it compiles one, would let it.
    """
    given = tokenizer.chat_template
    text = given["default"] if isinstance(given, dict) else given
    try:
        ChatTemplate(text).render(messages, None, prompt, tokenizer.special_tokens_map)
    except ValueError as error:
        raise TemplateError(str(error)) from error
    found: str = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=prompt)
    return found
