"""`/tokenize` and `/detokenize`, as vLLM has them: what a prompt is to a model, and what tokens say."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from gym_serve.api.auth import Access
from gym_serve.api.chat_completions import ChatCompletion, job_of
from gym_serve.api.chat_schema import ChatMessage, Tool
from gym_serve.api.errors import HTTPProblem
from gym_serve.api.fields import Body, Token
from gym_serve.api.service import Service, asking
from gym_serve.contract import Request
from gym_serve.template_options import TemplateOptions

NEED = "tokenize"  #: what an engine must support
OF_MESSAGES = ("tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message")


class Tokenize(Body):
    """A text, or a conversation as it is laid out for a reply."""

    model: Annotated[str, Field(max_length=512)]
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1)] | None = None
    tools: list[Tool] | None = None
    chat_template_kwargs: TemplateOptions | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class Detokenize(Body):
    """Tokens."""

    model: Annotated[str, Field(max_length=512)]
    tokens: list[Token]


async def tokenize(service: Service, body: Tokenize, access: Access) -> dict[str, Any]:
    """Return the tokens of a prompt, and on request how the vocabulary writes each."""
    model, asked = service.model(body.model, access)
    service.need(NEED, "model")
    if (body.prompt is None) == (body.messages is None):
        raise HTTPProblem(400, "give one of `prompt` and `messages`", key="prompt")
    if body.messages is not None:
        request = await _conversation(service, body, access)
    else:
        if given := [name for name in OF_MESSAGES if getattr(body, name) is not None]:
            raise HTTPProblem(400, "says nothing without `messages`", key=given[0])
        begins = body.add_special_tokens is not False
        request = Request(asked.model, asked.tenant, prompt=body.prompt, add_special_tokens=begins, owner=asked.owner)
    async with asking(service, asked):
        found = await service.engine.tokenize(request)
    texts = list(found.texts) if body.return_token_strs else None
    tokens = list(found.tokens)
    return {"count": len(tokens), "max_model_len": model.context_length, "tokens": tokens, "token_strs": texts}


async def _conversation(service: Service, body: Tokenize, access: Access) -> Request:
    """Return the request for a reply to a conversation."""
    if body.add_special_tokens:
        raise HTTPProblem(400, "the chat template writes them itself", key="add_special_tokens")
    given = body.model_dump(include={*OF_MESSAGES, "model", "messages"}, exclude_none=True)
    return (await job_of(service, ChatCompletion.model_validate(given), access, "")).requests[0]


async def detokenize(service: Service, body: Detokenize, access: Access) -> dict[str, Any]:
    """Return the text of tokens, special ones included."""
    _, asked = service.model(body.model, access)
    service.need(NEED, "model")
    async with asking(service, asked):
        return {"prompt": await service.engine.detokenize(asked.model, body.tokens, asked.tenant, asked.owner)}
