"""The prompt of a request as tokens. Special tokens that texts and messages spell out stay text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any

import numpy as np

from gym_core import DataError
from gym_data.chat.chat_rendering import ChatTemplateSpec, RenderRequest
from gym_data.chat.loss_masks import Rendered
from gym_data.chat.template_pool import WORKERS
from gym_data.media import Medium
from gym_serve.batching.batch_model import Words
from gym_serve.batching.bounds import check_tokens
from gym_serve.batching.images import found, in_parts, shown
from gym_serve.batching.middle import middle_tokens
from gym_serve.contract import PLAIN, Request, Tokenized
from gym_serve.errors import BadRequest
from gym_torch.generation.row import Inputs

MARK = "gymgoeson"  #: a word that is found in what a template writes, such as behind an answer that is gone on with


@dataclass(frozen=True)
class Prompt:
    """What a reply goes on with."""

    tokens: list[int]
    images: Sequence[Medium] = ()

    def inputs(self, tokenizer: Words) -> Inputs | None:
        """Return what computes the inputs of the model beside the tokens; None where there are none."""
        reader = tokenizer.media
        if reader is None or not self.images:
            return None
        return partial(reader.inputs, self.images, np.array(self.tokens, dtype=np.int32))

    def check(self, request: Request) -> None:
        """Raise BadRequest for what is not done where there are images."""
        if self.images and request.echo:
            raise BadRequest("prompts with images are not echoed", key="echo")
        if self.images and request.tenant is not None:
            raise BadRequest("adapters and variants are asked without images", key="messages")


def prompt_of(request: Request, tokenizer: Words, vocabulary: int, most_images: int = 0) -> Prompt:
    """Return the prompt of a request, of at least one token. Raises BadRequest where it has none or cannot be laid out."""
    given, prompt = _laid_out(request, tokenizer, most_images)
    found = prompt.tokens
    if not found:
        raise BadRequest("the prompt has no tokens", key=given)
    if given == "tokens":
        check_tokens(found, vocabulary, "prompt")
    if (last := max(found)) >= vocabulary:  # or the pass of the whole batch would fail
        raise BadRequest(f"the tokenizer has the token {last}, and the model {vocabulary} tokens", key=given)
    return prompt


def tokenized_by(tokenizer: Words, request: Request, most_images: int = 0) -> Tokenized:
    """Return the prompt of a request as tokens. Raises BadRequest where it cannot be laid out."""
    found = _laid_out(request, tokenizer, most_images)[1].tokens
    return Tokenized(tuple(found), tuple(tokenizer.written(token) or "" for token in found))


def _laid_out(request: Request, tokenizer: Words, most_images: int) -> tuple[str, Prompt]:
    """Return which part of a request says the prompt, and the prompt."""
    given = [part for part in ("messages", "prompt", "tokens") if getattr(request, part) is not None]
    if len(given) != 1:
        raise BadRequest("give exactly one of messages, prompt and tokens", key=given[0] if given else "messages")
    if request.suffix and request.prompt is None:
        raise BadRequest("stands behind a prompt of text, and nothing else", key="suffix")
    if request.tokens is not None:
        prompt = _given(request, tokenizer, most_images)
    elif request.prompt is not None:
        begins = tokenizer.document_start if request.add_special_tokens else ()
        told = middle_tokens(request, tokenizer) if request.suffix else tokenizer.encode(request.prompt)
        prompt = Prompt([*begins, *told])
    else:
        prompt = _chat(request, tokenizer, most_images)
    return given[0], prompt


def goes_on(request: Request) -> bool:
    """Whether a reply goes on with a text of the prompt, so that a space before its first word is a part of it."""
    if request.messages is None:
        return True
    return request.continue_final_message and bool(request.messages[-1].get("content"))


def _given(request: Request, tokenizer: Words, most_images: int) -> Prompt:
    try:
        return Prompt(list(request.tokens or ()), found(request, tokenizer.media, most_images))
    except ValueError as error:
        raise BadRequest(str(error).splitlines()[0][:300], key="tokens") from error


def _chat(request: Request, tokenizer: Words, most_images: int) -> Prompt:
    messages = [dict(message) for message in request.messages or ()]
    if not messages:
        raise BadRequest("there are no messages", key="messages")
    options: Mapping[str, Any] = request.template_options
    if not all(isinstance(value, PLAIN) for value in options.values()):
        raise BadRequest("options of templates are plain values", key="chat_template_kwargs")
    spec, reader = tokenizer.template_spec, tokenizer.media

    def encoded(rendered: Rendered) -> list[int]:
        rendered = rendered if reader is None else shown(rendered, reader, images)
        tokens, _ = tokenizer.encode_rendered([rendered])[0]
        return list(tokens.tolist())

    try:
        if "default" not in tokenizer.templates:
            raise ValueError("the model has no chat template; ask it with a prompt")
        images = found(request, reader, most_images)
        messages = _begun_by_system(spec, request, messages)
        messages = messages if reader is None else in_parts(messages)
        if request.continue_final_message and (begun := _begun(spec, request, messages)) is not None:
            return Prompt(encoded(begun), images)
        last = messages.pop().get("content") or "" if request.continue_final_message else ""
        rendered = WORKERS.chat(
            spec, RenderRequest(messages, request.tools or (), prompt=True, values=options)
        ).sequences[0]
        hidden = request.tools and not _shown(spec, request.tools, messages, options, rendered.text)
        tokens = [*encoded(rendered), *tokenizer.encode(str(last))]
    except (ValueError, DataError) as error:
        raise BadRequest(str(error).splitlines()[0][:300], key="messages") from error
    if hidden:
        raise BadRequest("the chat template of this model shows no tools", key="tools")
    return Prompt(tokens, images)


def _shown(
    spec: ChatTemplateSpec,
    tools: Sequence[Any],
    messages: Sequence[dict[str, Any]],
    options: Mapping[str, Any],
    text: str,
) -> bool:
    """Whether a template has shown tools; some show them no more behind the results of calls, which counts as shown."""
    functions = [tool.get("function", tool) for tool in tools if isinstance(tool, Mapping)]
    names = [str(each.get("name", "")) for each in functions if isinstance(each, Mapping)]
    if any(name in text for name in names) or not messages or messages[-1].get("role") != "user":
        return True
    return WORKERS.chat(spec, RenderRequest(messages, (), prompt=True, values=options)).sequences[0].text != text


def _begun_by_system(spec: ChatTemplateSpec, request: Request, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with one that the system says first, where the template takes no more: it may refuse or drop them."""
    said_first = takewhile(
        lambda each: each.get("role") == "system" and not isinstance(each.get("content"), list), messages
    )
    count = sum(1 for _ in said_first)
    if count < 2:
        return messages
    tried = [{"role": "system", "content": f"{MARK}{at}."} for at in range(count)]
    try:
        asked = RenderRequest(
            [*tried, {"role": "user", "content": MARK}],
            request.tools or (),
            prompt=True,
            values=request.template_options,
        )
        text = WORKERS.chat(spec, asked).sequences[0].text
        if all(message["content"] in text for message in tried):
            return messages
    except (ValueError, DataError):
        pass
    said = "\n\n".join(str(message["content"]) for message in messages[:count] if message.get("content"))
    return [{**messages[0], "content": said}, *messages[count:]]


def _begun(spec: ChatTemplateSpec, request: Request, messages: list[dict[str, Any]]) -> Rendered | None:
    """Return a conversation as the template writes it, thoughts of the last answer included, up to the end of that; None where
    the template does not show it.
    """
    marked = {**messages[-1], "content": (messages[-1].get("content") or "") + MARK}
    try:
        asked = RenderRequest([*messages[:-1], marked], request.tools or (), values=request.template_options)
        found = WORKERS.chat(spec, asked).sequences[0].text
    except (ValueError, DataError):  # it may take the conversation without its last answer
        return None
    at = found.rfind(MARK)
    return Rendered(found[:at], ()) if at >= 0 else None
