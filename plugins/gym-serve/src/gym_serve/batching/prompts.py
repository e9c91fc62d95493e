"""The prompt of a request as tokens. Special tokens that texts and messages spell out stay text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gym_core import DataError
from gym_data.chat.chat_rendering import RenderRequest
from gym_data.chat.template_pool import WORKERS
from gym_serve.batching.batch_model import Words
from gym_serve.contract import Request
from gym_serve.errors import BadRequest

PLAIN = (bool, int, float, str, type(None))  #: values of template options


def prompt_tokens(request: Request, tokenizer: Words, vocabulary: int) -> list[int]:
    """Return the tokens of a prompt, at least one. Raises BadRequest where it has none or cannot be laid out."""
    given = [part for part in ("messages", "prompt", "tokens") if getattr(request, part) is not None]
    if len(given) != 1:
        raise BadRequest("give exactly one of messages, prompt and tokens", key=given[0] if given else "messages")
    if request.tokens is not None:
        found = list(request.tokens)
        if not all(0 <= token < vocabulary for token in found):
            raise BadRequest(f"tokens are numbers from 0 to {vocabulary - 1}", key="prompt")
    elif request.prompt is not None:
        found = [*tokenizer.document_start, *tokenizer.encode(request.prompt)]
    else:
        found = _chat(request, tokenizer)
    if not found:
        raise BadRequest("the prompt has no tokens", key=given[0])
    return found


def goes_on(request: Request) -> bool:
    """Whether a reply goes on with a text of the prompt, so that a space before its first word is a part of it."""
    if request.messages is None:
        return True
    return request.continue_final_message and bool(request.messages[-1].get("content"))


def _chat(request: Request, tokenizer: Words) -> list[int]:
    messages = [dict(message) for message in request.messages or ()]
    if not messages:
        raise BadRequest("there are no messages", key="messages")
    last = ""
    if request.continue_final_message:
        last = messages.pop().get("content") or ""
    options: Mapping[str, Any] = request.template_options
    if not all(isinstance(value, PLAIN) for value in options.values()):
        raise BadRequest("options of templates are plain values", key="chat_template_kwargs")
    spec = tokenizer.template_spec
    if options:
        spec = replace(spec, values={**spec.values, **options})
    try:
        if "default" not in tokenizer.templates:
            raise ValueError("the model has no chat template; ask it with a prompt")
        rendered = WORKERS.chat(spec, RenderRequest(messages, request.tools or (), prompt=True)).sequences[0]
    except (ValueError, DataError) as error:
        raise BadRequest(str(error).splitlines()[0][:300], key="messages") from error
    tokens, _ = tokenizer.encode_rendered([rendered])[0]
    return [*tokens.tolist(), *tokenizer.encode(str(last))]
