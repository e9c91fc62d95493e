"""What a vLLM server is asked for a reply, and how what it says is read."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Iterator
from typing import Any

from urllib3 import BaseHTTPResponse

from gym_serve.contract import Grammar, Request
from gym_serve.errors import BadRequest, Full, RequestError
from gym_torch.generation.row import Row
from gym_torch.generation.sampling import uniform

GRAMMARS: dict[str, Callable[[Grammar], dict[str, Any]]] = {
    "json_schema": lambda grammar: {"json": json.loads(grammar.text)},
    "json_object": lambda grammar: {"json_object": True},
    "regex": lambda grammar: {"regex": grammar.text},
}
TOKEN = "token_id:"  #: what stands before the id of a token where its text would be  # noqa: S105
CHUNK = 1 << 16
LINE = 1 << 22  #: most bytes of an event

Event = tuple[int | None, float, list[tuple[int, float]], bool]
"""A token with its log-probability and the likeliest ones, and whether the server ended the reply by its rules."""


def body_of(name: str, request: Request, row: Row, seed: int) -> dict[str, Any]:
    """Return the body of a request: every setting is said, because a server fills gaps from files of the model.

    A prompt that is kept serves its owner alone, by the salt of the cache.
    """
    sampling = request.sampling
    owner = request.owner if request.owner is not None else secrets.token_hex(16)
    body: dict[str, Any] = {
        "model": name,
        "prompt": list(row.prompt),
        "max_tokens": row.limit,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "seed": int(uniform(seed, request.index, 0) * (1 << 53)),
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "stop_token_ids": sorted(row.stop),
        "ignore_eos": sampling.ignore_eos,
        "min_tokens": min(sampling.min_tokens, row.limit),
        "skip_special_tokens": False,
        "add_special_tokens": False,
        "cache_salt": hashlib.sha256(f"{name} {owner}".encode()).hexdigest(),
        "stream": True,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }
    if sampling.logit_bias:
        body["logit_bias"] = {str(token): value for token, value in sampling.logit_bias.items()}
    if sampling.logprobs is not None:
        body["logprobs"] = sampling.logprobs
    if sampling.grammar is not None:
        if sampling.grammar.kind not in GRAMMARS:
            raise BadRequest(f"no {sampling.grammar.kind} is followed by this engine", key="response_format")
        try:
            body["structured_outputs"] = GRAMMARS[sampling.grammar.kind](sampling.grammar)
        except (ValueError, RecursionError):
            raise BadRequest("this is no schema", key="response_format") from None
    return body


def events(response: BaseHTTPResponse) -> Iterator[Event]:
    """Yield what a stream says, token by token. Raises RequestError for an error in it, or what is no stream of vLLM."""
    held = b""
    while chunk := response.read1(CHUNK):
        *lines, held = (held + chunk).split(b"\n")
        for line in lines:
            yield from _read(line)
        if len(held) > LINE:
            raise _no_stream()
    yield from _read(held)


def _read(line: bytes) -> Iterator[Event]:
    data = line.strip().removeprefix(b"data:").strip()
    if not data or data == b"[DONE]":
        return
    try:
        said = json.loads(data)
        if "error" in said:
            raise RequestError(f"the vLLM server failed: {_words(said['error'])}")
        for choice in said["choices"]:
            tokens = choice.get("token_ids") or []
            scored = choice.get("logprobs") or {}
            log_probs = scored.get("token_logprobs") or [0.0] * len(tokens)
            tops = scored.get("top_logprobs") or [{}] * len(tokens)
            for token, log_prob, top in zip(tokens, log_probs, tops, strict=True):
                yield int(token), float(log_prob), _likeliest(top or {}), False
            yield None, 0.0, [], choice.get("finish_reason") == "stop"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _no_stream() from error


def _no_stream() -> RequestError:
    return RequestError("the vLLM server replied with what is no stream of tokens")


def _likeliest(top: dict[str, float]) -> list[tuple[int, float]]:
    found = [(int(text.removeprefix(TOKEN)), float(value)) for text, value in top.items()]
    return sorted(found, key=lambda each: -each[1])


def why_of(status: int, received: bytes) -> RequestError:
    """Return what a client is told of a reply that is no stream."""
    try:
        words = _words(json.loads(received))
    except (ValueError, RecursionError):
        words = received.decode("utf-8", "replace")[:200]
    if status in (429, 503):
        return Full("the vLLM server is busy")
    if status in (400, 422):
        return BadRequest(words or "the vLLM server refused it", key="body")
    return RequestError(f"the vLLM server replied with status {status}")


def _words(said: Any) -> str:
    while isinstance(said, dict):
        said = said.get("error") or said.get("message") or ""
    return " ".join(str(said).split())[:300]
