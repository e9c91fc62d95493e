"""`/v1/completions`: OpenAI's completions of texts and of tokens."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from secrets import token_hex
from typing import Annotated, Any, Literal

from pydantic import Field

from gym_serve.api.auth import Access
from gym_serve.api.chat_completions import StreamOptions, usage_of
from gym_serve.api.chat_schema import ResponseFormat, StructuredOutputs, grammar_of
from gym_serve.api.errors import HTTPProblem
from gym_serve.api.fields import SamplingBody, Token, sampling
from gym_serve.api.generation import Event, Job, Reply, events, replies, total
from gym_serve.api.service import Service
from gym_serve.api.sse import EventStream, Line, begun
from gym_serve.contract import Request, TokenLogprob, Usage


class Completion(SamplingBody):
    """Texts to go on with."""

    prompt: str | list[str] | list[Token] | list[list[Token]]
    suffix: str | None = None  #: text behind the prompt, for models that complete in the middle
    max_tokens: Annotated[int, Field(ge=0, le=2**31)] | None = 16
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    best_of: Literal[1] | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None

    def prompts(self) -> list[dict[str, Any]]:
        """Return what a request holds for each prompt."""
        if isinstance(self.prompt, str):
            return [{"prompt": self.prompt}]
        if self.prompt and isinstance(self.prompt[0], int):
            return [{"tokens": tuple(self.prompt)}]
        return [{"prompt": each} if isinstance(each, str) else {"tokens": tuple(each)} for each in self.prompt]  # type: ignore[arg-type]


async def completions(service: Service, body: Completion, access: Access) -> dict[str, Any] | EventStream:
    """Answer, at once or as a stream; of several prompts, the replies to each stand together."""
    model, asked = service.model(body.model, access)
    if "generate" not in model.tasks:
        raise HTTPProblem(400, "this model scores texts and writes none: ask `/v1/score`", key="model")
    head: dict[str, Any] = {
        "id": f"cmpl-{token_hex(12)}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": body.model,
    }
    drawn = sampling(service, body, body.max_tokens)
    if body.logprobs is not None:
        service.need("logprobs", "logprobs")
    if body.echo:
        service.need("echo", "echo")
    elif body.max_tokens == 0:
        raise HTTPProblem(400, "at least one token must be asked for, or `echo` for the prompt alone", key="max_tokens")
    drawn = replace(
        drawn, logprobs=body.logprobs, grammar=grammar_of(service, body.response_format, body.structured_outputs)
    )
    prompts, count, suffix = body.prompts(), body.n or 1, body.suffix or None
    if suffix is not None:
        service.need("suffix", "suffix")
        if body.echo:
            raise HTTPProblem(400, "a prompt with text behind it is not echoed", key="echo")
    if not prompts or not (suffix or all(part for prompt in prompts for part in prompt.values())):
        raise HTTPProblem(400, "a prompt is empty", key="prompt")
    if len(prompts) * count > service.options.max_n:
        why = f"{len(prompts) * count} replies are more than the {service.options.max_n} of one request"
        raise HTTPProblem(400, why, key="prompt" if len(prompts) > 1 else "n")
    request = Request(
        asked.model, asked.tenant, suffix=suffix, sampling=drawn, id=head["id"], owner=asked.owner, echo=bool(body.echo)
    )
    job = Job(asked, tuple(replace(request, **prompt, index=index) for prompt in prompts for index in range(count)))
    if body.stream:
        usage = bool(body.stream_options and body.stream_options.include_usage)
        return EventStream(await begun(_chunks(service, job, head, usage)))
    if body.stream_options is not None:
        raise HTTPProblem(400, "says nothing without `stream`", key="stream_options")
    found = await replies(service, job)
    choices = [
        _choice(index, reply.delta.content, body.logprobs is not None, reply, reply.finish_reason)
        for index, reply in enumerate(found)
    ]
    return {**head, "choices": choices, "usage": usage_of(_spent([reply.usage for reply in found], count))}


async def _chunks(service: Service, job: Job, head: dict[str, Any], usage: bool) -> AsyncGenerator[Line, None]:
    further: dict[str, Any] = {"usage": None} if usage else {}
    spent: dict[int, Usage] = {}
    logprobs = job.requests[0].sampling.logprobs is not None

    def chunk(event: Event) -> Line:
        choice = _choice(event.index, event.delta.content, logprobs, event, event.finish_reason)
        return None, {**head, "choices": [choice], **further}

    async with aclosing(events(service, job)) as found:
        async for event in found:
            if event.usage is not None:
                spent[event.index] = event.usage
            yield chunk(event)
    if usage:
        count = 1 + max(request.index for request in job.requests)
        total_of = _spent([spent[index] for index in sorted(spent)], count)
        yield None, {**head, "choices": [], "usage": usage_of(total_of)}


def _spent(usages: Sequence[Usage], count: int) -> Usage:
    """Return the tokens of a request with so many replies to each prompt."""
    each = [total(usages[at : at + count]) for at in range(0, len(usages), count)]
    return Usage(
        sum(usage.prompt_tokens for usage in each),
        sum(usage.completion_tokens for usage in each),
        sum(usage.cached_tokens for usage in each),
        sum(usage.reasoning_tokens for usage in each),
    )


def _choice(index: int, text: str, logprobs: bool, found: Event | Reply, reason: str | None) -> dict[str, Any]:
    shown = _logprobs(found.logprobs, found.starts) if logprobs else None
    return {"index": index, "text": text, "logprobs": shown, "finish_reason": reason}


def _logprobs(tokens: Sequence[TokenLogprob], starts: Sequence[int]) -> dict[str, Any]:
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [None if token.logprob is None else max(token.logprob, -9999.0) for token in tokens],
        "top_logprobs": [_likeliest(token) for token in tokens],
        "text_offset": list(starts),
    }


def _likeliest(token: TokenLogprob) -> dict[str, float] | None:
    """Return log-probabilities by text: of the likeliest tokens and of the one that was drawn.

    Tokens that are parts of a character have one text, which has the log-probability of the likeliest of them.
    """
    if token.logprob is None:
        return None
    ranked = sorted([(token.logprob, token.text), *((other.logprob, other.text) for other in token.top)])
    return {text: max(logprob, -9999.0) for logprob, text in ranked}
