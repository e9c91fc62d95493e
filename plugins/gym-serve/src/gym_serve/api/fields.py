"""Fields of requests that several routes have, what of them an engine must support, and those that nobody serves here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gym_core.discovery import nearest
from gym_serve.api.errors import HTTPProblem
from gym_serve.api.service import Service
from gym_serve.contract import Sampling
from gym_serve.sampling_bounds import RepetitionPenalty, Temperature, TopP

REFUSED = {
    "chat_template": "templates come with the model: choose one when the server is started",
    "template": "templates come with the model: choose one when the server is started",
    "functions": "use `tools`",
    "function_call": "use `tool_choice` and `tool_calls`",
    "guided_json": "use `structured_outputs`",
    "guided_regex": "use `structured_outputs`",
    "guided_choice": "use `structured_outputs`",
    "grammar": "use `structured_outputs`",
    "suffix": "`/v1/completions` completes text in the middle",
    "best_of": "use `n`",
    "previous_response_id": "nothing is stored: send the whole conversation as `input`",
    "conversation": "nothing is stored: send the whole conversation as `input`",
    "background": "nothing is stored: read the reply as a stream",
    "prompt_embeds": "no tensors are read from requests",
    "audio": "only text is made",
    "image_url": "an image is a part of a content, of type `image_url` or `input_image`",
    "verbosity": "models are not told of it: leave it out, and ask in words",
    "encrypted_content": "only who wrote it can read it: leave it out",
    "mcp_servers": "no server is asked on behalf of a model",
}
"""What to do instead, for fields that clients know and no engine here has."""


class Body(BaseModel):
    """The body of a request. A field that it does not have is refused by name, unless it is null and so asks for nothing."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        """Leave out nulls of fields that are not there: some clients write every field that they know."""
        if not isinstance(given, dict) or None not in given.values():
            return given
        known = {field.alias or name for name, field in cls.model_fields.items()}
        return {name: value for name, value in given.items() if value is not None or name in known}


class Ignored(Body):
    """Fields that say nothing of the reply."""

    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None  #: nothing is, and replies that could say so do
    service_tier: str | None = None


Count = Annotated[int, Field(ge=1, le=2**31)]
Token = Annotated[int, Field(ge=0, lt=2**31)]


class SamplingBody(Ignored):
    """How replies are drawn, in the words of OpenAI's API, and of vLLM's for what that does not have."""

    model: Annotated[str, Field(max_length=512)]
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: str | Annotated[list[str], Field(max_length=16)] | None = None
    stop_token_ids: Annotated[list[int], Field(max_length=64)] | None = None
    include_stop_str_in_output: bool | None = None
    min_tokens: Annotated[int, Field(ge=0, le=2**31)] | None = None
    bad_words: Annotated[list[Annotated[str, Field(max_length=1024)]], Field(max_length=256)] | None = None
    n: Count | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: RepetitionPenalty | None = None
    logit_bias: Annotated[dict[int, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=1024)] | None = None
    ignore_eos: bool | None = None
    do_sample: bool | None = None  #: LLaMA-Factory's: false is greedy

    def stops(self) -> tuple[str, ...]:
        """Return the texts that end a reply."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


NEEDS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "top_k": ("top_k", (0, -1)),
    "min_p": ("min_p", (0,)),
    "seed": ("seed", ()),
    "presence_penalty": ("penalties", (0,)),
    "frequency_penalty": ("penalties", (0,)),
    "repetition_penalty": ("penalties", (1,)),
    "logit_bias": ("logit_bias", ({},)),
    "include_stop_str_in_output": ("include_stop_str_in_output", (False,)),
    "min_tokens": ("min_tokens", (0,)),
    "bad_words": ("bad_words", ([],)),
}
"""What an engine must support for a field, and values of the field that ask for nothing."""


def sampling(service: Service, body: SamplingBody, max_tokens: int | None, field: str = "max_tokens") -> Sampling:
    """Return how replies are drawn. Raises BadRequest, naming the field, for what the engine does not support."""
    for name, (need, nothing) in NEEDS.items():
        value = getattr(body, name)
        if value is not None and value not in nothing:
            service.need(need, name)
    if any(not text or len(text) > 1024 for text in body.stops()):
        raise HTTPProblem(400, "a text that ends a reply has 1 to 1,024 characters", key="stop")
    if not all(word.strip() for word in body.bad_words or ()):
        raise HTTPProblem(400, "a word is empty", key="bad_words")
    if max_tokens is not None and (body.min_tokens or 0) > max_tokens:
        raise HTTPProblem(400, f"{body.min_tokens} tokens are more than the reply may have", key="min_tokens")
    usual = service.options
    most = usual.max_output_tokens
    if most is not None and max_tokens is not None and max_tokens > most:
        raise HTTPProblem(400, f"{max_tokens} tokens are more than the {most} that a request may ask for", key=field)
    if body.n is not None and body.n > usual.max_n:
        raise HTTPProblem(400, f"{body.n} replies are more than the {usual.max_n} of one request", key="n")
    return Sampling(
        max_tokens=next((each for each in (max_tokens, usual.max_tokens, most) if each is not None), None),
        temperature=0.0 if body.do_sample is False else _or(body.temperature, usual.temperature),
        top_p=_or(body.top_p, usual.top_p),
        top_k=usual.top_k if body.top_k is None else max(0, body.top_k),
        min_p=body.min_p or 0.0,
        seed=body.seed,
        stop=body.stops(),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        include_stop_str_in_output=bool(body.include_stop_str_in_output),
        min_tokens=body.min_tokens or 0,
        bad_words=tuple(body.bad_words or ()),
        logit_bias=body.logit_bias or {},
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        repetition_penalty=_or(body.repetition_penalty, usual.repetition_penalty),
        ignore_eos=bool(body.ignore_eos),
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def problem_of(errors: list[Mapping[str, Any]]) -> HTTPProblem:
    """Return what is told of a body that does not validate: a thing that is wrong, with the field. Where a field has several
    forms, it is that of the form which fits best.
    """
    named = [error for error in errors if error["type"] == "extra_forbidden"]
    first = max(named or errors, key=_fit)  # of equal ones the first
    path = [part for part in first["loc"] if part not in ("body", "str", "int") and not str(part)[:1].isupper()]
    field = _dotted([part for part in path if isinstance(part, int) or str(part).isidentifier()][:6])
    if first["type"] == "literal_error" and path[-1:] and path[-1] in REFUSED:
        return HTTPProblem(400, f"`{field}` is not supported: {REFUSED[path[-1]]}", key=field, code="unsupported_field")
    if first["type"] == "extra_forbidden":
        near = nearest(str(path[-1]), SamplingBody.model_fields, cutoff=0.75) if len(path) == 1 else ""
        near = near if near != path[-1] else ""  # which other paths have
        unknown = f"did you mean `{near}`?" if near else "the engine that serves this model has no such field"
        why = REFUSED.get(str(path[-1]), unknown)
        return HTTPProblem(400, f"`{field[:200]}` is not supported: {why}", key=field[:200], code="unsupported_field")
    return HTTPProblem(400, f"{field}: {first['msg']}" if field else str(first["msg"]), key=field, code="invalid_value")


def _fit(error: Mapping[str, Any]) -> tuple[int, bool]:
    """Return how well a form fits that is wrong in this way: a value of another type than it has does so least."""
    return len(error["loc"]), not str(error["type"]).endswith("_type")


def _dotted(path: list[Any]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
