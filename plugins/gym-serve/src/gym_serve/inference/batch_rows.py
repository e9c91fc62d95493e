"""Rows that say how they are to be answered: requests as OpenAI's batch files and `vllm run-batch` have them, and rows with
sampling options beside what they ask.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from secrets import token_hex
from typing import Any, get_type_hints

from pydantic import ValidationError

from gym_serve.api.app import POSTED
from gym_serve.api.auth import Access
from gym_serve.api.errors import HTTPProblem, body_of, status_of
from gym_serve.api.fields import Count, SamplingBody, problem_of, sampling
from gym_serve.api.metrics import Metrics
from gym_serve.api.options import ApiOptions
from gym_serve.api.service import Service
from gym_serve.api.sse import EventStream
from gym_serve.contract import Engine, Sampling
from gym_serve.errors import Full, Gone, RequestError
from gym_serve.names import Asked
from gym_serve.template_options import TemplateSettings

LIMITS = {"request_seconds": 1e9}  #: how many are asked at once is said elsewhere
RENAMED = {"max_completion_tokens": "max_tokens"}
#: options that may stand in a row
SAID = ("max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids",
        "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "ignore_eos")  # fmt: skip
#: those that may stand in a body alone
OF_BODIES = ("n", "best_of", "logprobs", "top_logprobs", "response_format", "structured_outputs", "tool_choice",
             "parallel_tool_calls", "echo", "chat_template_kwargs", "continue_final_message",
             "add_generation_prompt")  # fmt: skip


class RowSampling(SamplingBody):
    """The options of a row."""

    model: str = ""
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None


@dataclass(frozen=True)
class BatchRequest:
    """A request in a row."""

    custom_id: str
    url: str
    body: Mapping[str, Any]


def batch_request(row: Mapping[str, Any]) -> BatchRequest | None:
    """Return the request that a row is; None where it has no object as its `body`. Raises ValueError for what is none."""
    if not isinstance(row.get("body"), dict):
        return None
    if not isinstance(row.get("custom_id"), str):
        raise ValueError("has a `body` and no `custom_id`")
    if row.get("method", "POST") != "POST" or row.get("url") not in POSTED:
        raise ValueError(f"`url` is none of POST {', '.join(POSTED)}")
    return BatchRequest(row["custom_id"], row["url"], row["body"])


def custom_id(row: Any) -> str:
    """Return the `custom_id` of a row that has a request for its `body`, "" of any other."""
    found = row.get("custom_id") if isinstance(row, dict) and isinstance(row.get("body"), dict) else None
    # half a character can not be written
    return found.encode(errors="ignore").decode() if isinstance(found, str) else ""


def refused(why: str, custom_id: str) -> dict[str, Any]:
    """Return the line of a row that cannot be asked; that of a request has its `custom_id`, as in OpenAI's error files."""
    if not custom_id:
        return {"error": why}
    return {"custom_id": custom_id, "response": None, "error": {"code": "invalid_request", "message": why}}


def options_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampling options that a row says. Raises ValueError for those that a row cannot say."""
    for name in OF_BODIES:
        if row.get(name) not in (None, False, 1):
            raise ValueError(f'`{name}` is read in a request alone: {{"custom_id": ..., "url": ..., "body": ...}}')
    found = {name: row[name] for name in SAID if row.get(name) is not None}
    try:
        RowSampling.model_validate(found)
    except ValidationError as error:
        raise ValueError(problem_of(list(error.errors())).problems[0].why) from error  # type: ignore[arg-type]
    return found


def service_of(engine: Engine, whom: Asked, drawn: Sampling, told: TemplateSettings, system: str) -> Service:
    """Return what answers requests: where they say nothing, the command does."""
    names = ("temperature", "top_p", "top_k", "repetition_penalty", "max_tokens")
    usual = {name: getattr(drawn, name) for name in names}
    template = {name: getattr(told, name) for name in TemplateSettings.model_fields}
    options = ApiOptions.model_validate({**usual, **template, **LIMITS, "system": system, "tenant": whom.tenant})
    return Service(engine, options, Metrics(set, engine.statistics))


def drawn_by(service: Service, usual: Sampling, said: Mapping[str, Any]) -> Sampling:
    """Return how the answer to a row is drawn. Raises RequestError for what the engine does not support."""
    if not said:
        return usual
    body = RowSampling.model_validate(said)
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    found = sampling(service, body, limit)
    return replace(usual, **{name: getattr(found, name) for name in (RENAMED.get(each, each) for each in said)})


async def answered(service: Service, request: BatchRequest, usual: Sampling, number: int) -> dict[str, Any]:
    """Return the line of a request. Raises Full and Gone, which are not about it."""
    answer = POSTED[request.url]
    kind = get_type_hints(answer)["body"]
    given = {"model": service.engine.models()[0].name, **request.body}
    if "seed" in kind.model_fields and given.get("seed") is None and usual.seed is not None:
        mixed = hashlib.sha256(f"{usual.seed} {number}".encode()).digest()
        given["seed"] = int.from_bytes(mixed[:7], "big")  # so that it is the same wherever it was stopped
    status = 200
    error: RequestError | None = None
    try:
        if given.get("stream"):
            raise HTTPProblem(400, "a row is answered as a whole: leave it out", key="stream")
        said = await answer(service, kind.model_validate(given), Access(owner="inference"))
        assert not isinstance(said, EventStream)
    except (Full, Gone):
        raise
    except ValidationError as caught:
        error = problem_of(list(caught.errors()))  # type: ignore[arg-type]
    except RequestError as caught:
        error = caught
    if error is not None:
        status, said = status_of(error), body_of(error, request.url)
    written = {"status_code": status, "request_id": f"req-{token_hex(12)}", "body": said}
    return {
        "id": f"batch-{token_hex(12)}",
        "custom_id": request.custom_id,
        "response": written,
        "error": said["error"] if error is not None else None,
    }
