"""Conversations of OpenAI's API: messages, tools, and what a reply must look like."""

from __future__ import annotations

import json
import re
from itertools import groupby
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator
from pydantic_core import PydanticCustomError

from gym_data.chat.answer_format import AnswerFormat
from gym_data.chat.answer_grammar import json_lark, pattern_lark, spoken, thoughtful
from gym_data.chat.call_forms import CallForm
from gym_serve.api.errors import HTTPProblem
from gym_serve.api.fields import Body
from gym_serve.api.json_schemas import without_remarks
from gym_serve.api.service import Service
from gym_serve.contract import Grammar

SIGN = re.compile(r"[\\^$.|?*+()\[\]{}]")  #: what means more than itself in a pattern
Name = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.\-]+$")]


class TextPart(Body):
    """A text in a content."""

    type: Literal["text", "refusal"]
    text: str = ""
    refusal: str | None = None
    cache_control: dict[str, Any] | None = None  #: changes nothing, as equal beginnings are found anyway


class ImageURL(Body):
    """An image. Of whatever detail, it is read as the server has images read."""

    url: Annotated[str, Field(min_length=1)]
    detail: Literal["auto", "high"] | None = None

    @field_validator("url")
    @classmethod
    def _is_data(cls, url: str) -> str:
        return data_url(url)


class ImagePart(Body):
    """An image in the content of a message of the user."""

    type: Literal["image_url"]
    image_url: ImageURL


def data_url(url: str) -> str:
    """Return a URL that holds an image. Raises an error of pydantic where it is another one."""
    if not url.startswith("data:image/"):
        why = "an image is sent as a `data:image/...;base64,` URL: no address is fetched, and no file read"
        raise PydanticCustomError("image_url", why)
    return url


def _part(part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else getattr(part, "type", None)
    return "Image" if kind == "image_url" else "Text"


Part = Annotated[Annotated[TextPart, Tag("Text")] | Annotated[ImagePart, Tag("Image")], Discriminator(_part)]


class Function(Body):
    """A call that was made."""

    name: Name
    arguments: str = "{}"
    parsed_arguments: Any = None  #: what its client read of them


class Call(Body):
    """A tool call of the assistant."""

    id: Annotated[str, Field(max_length=256)] = ""
    type: Literal["function"] = "function"
    function: Function
    index: int | None = None


class ChatMessage(Body):
    """A message. Keys that clients send back from replies may be there, as long as they say nothing."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    name: Annotated[str, Field(max_length=256)] | None = None
    tool_calls: list[Call] | None = None
    tool_call_id: Annotated[str, Field(max_length=256)] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  #: the same, by another of its names
    refusal: str | None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    parsed: Any = None  #: what its client read of the content

    @property
    def images(self) -> bool:
        """Whether it has any."""
        return isinstance(self.content, list) and any(isinstance(part, ImagePart) for part in self.content)

    def plain(self) -> dict[str, Any]:
        """Return it as templates read it, or where it has images as engines do."""
        if self.images and self.role != "user":
            raise HTTPProblem(400, "images are read in messages of the user", key="messages")
        written: dict[str, Any] = {"role": self.role.replace("developer", "system"), "content": self._content()}
        thought = self.reasoning if self.reasoning_content is None else self.reasoning_content
        said = {"name": self.name, "tool_call_id": self.tool_call_id, "reasoning_content": thought}
        written |= {key: value for key, value in said.items() if value is not None}
        if self.tool_calls:
            written["tool_calls"] = [_called(call) for call in self.tool_calls]
        return written

    def _content(self) -> str | list[dict[str, Any]]:
        given = [TextPart(type="text", text=self.content)] if isinstance(self.content, str) else self.content or []
        parts: list[dict[str, Any]] = []
        for image, same in groupby(given, lambda part: isinstance(part, ImagePart)):
            if image:
                parts += [
                    {"type": "image", "image": part.image_url.url} for part in same if isinstance(part, ImagePart)
                ]
            else:
                text = "\n".join(part.text for part in same if isinstance(part, TextPart))
                parts.append({"type": "text", "text": text})
        return parts if self.images else "".join(part["text"] for part in parts)


def _called(call: Call) -> dict[str, Any]:
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = call.function.arguments
    return {"type": "function", "id": call.id, "function": {"name": call.function.name, "arguments": arguments}}


class FunctionTool(Body):
    """A function on offer."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Offered(Body):
    """A tool on offer, which the client runs."""

    kind: ClassVar[str] = "function"  #: the type of those that are known

    @model_validator(mode="before")
    @classmethod
    def _function(cls, given: Any) -> Any:
        kind = given.get("type") if isinstance(given, dict) else None
        if isinstance(kind, str) and kind != cls.kind:
            why = "functions with a schema are the only tools here, and this one is of type `{kind}`: leave it out"
            raise PydanticCustomError("tool_type", why, {"kind": kind[:64]})
        return given


class Tool(Offered):
    """A tool on offer."""

    type: Literal["function"]
    function: FunctionTool

    def plain(self) -> dict[str, Any]:
        """Return it as templates read it."""
        return {"type": "function", "function": self.function.model_dump(exclude_none=True, exclude={"strict"})}


class NamedFunction(Body):
    """The name of a function."""

    name: Name


class NamedTool(Body):
    """The tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


class JsonSchema(Body):
    """What a reply is an instance of."""

    name: Name
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(Body):
    """What a reply must look like."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(Body):
    """What a reply must look like, in vLLM's words: one of these."""

    json_: Annotated[dict[str, Any] | None, Field(alias="json")] = None
    json_object: Literal[True] | None = None
    regex: Annotated[str, Field(min_length=1)] | None = None
    choice: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)] | None = None

    def grammar(self) -> Grammar:
        """Return what a reply must look like. Raises BadRequest where that is not one thing."""
        key = "structured_outputs"
        if len(self.model_dump(exclude_none=True)) != 1:
            raise HTTPProblem(400, "give one of json, json_object, regex and choice", key=key)
        if self.json_ is not None:
            return Grammar("json_schema", json.dumps(without_remarks(self.json_)), key)
        if self.json_object:
            return Grammar("json_object", key=key)
        texts = (SIGN.sub(r"\\\g<0>", text) for text in self.choice or ())
        return Grammar("regex", self.regex or f"({'|'.join(texts)})", key)


def grammar_of(
    service: Service, format: ResponseFormat | None, structured: StructuredOutputs | None = None
) -> Grammar | None:
    """Return what a reply must look like. Raises BadRequest where the engine does not see to that."""
    found = None if format is None or format.type == "text" else _of_format(format)
    if structured is not None:
        if found is not None:
            raise HTTPProblem(
                400, "says the same as `response_format`: leave one of them out", key="structured_outputs"
            )
        found = structured.grammar()
    if found is not None:
        service.need(f"grammar:{found.kind}", found.key)
    return found


def _of_format(format: ResponseFormat) -> Grammar:
    if format.type == "json_object":
        return Grammar("json_object")
    if format.json_schema is None or format.json_schema.schema_ is None:
        raise HTTPProblem(400, "names no schema", key="response_format.json_schema")
    return Grammar("json_schema", json.dumps(without_remarks(format.json_schema.schema_)))


ToolChoice = Literal["none", "auto", "required"] | NamedTool


def tool_grammar(
    service: Service, tools: list[Tool], choice: ToolChoice | None, calls: CallForm | None
) -> Grammar | None:
    """Return what makes a reply a call: of any of the tools where one is required, or of the one that is named."""
    if choice is None or choice == "auto" or choice == "none":
        return None
    named = choice.function.name if isinstance(choice, NamedTool) else None
    fitting = [tool.function for tool in tools if named in (None, tool.function.name)]
    if not fitting:
        why = "no tool of this name is offered" if named else "a call is required, and no tool is offered"
        raise HTTPProblem(400, why, key="tool_choice")
    service.need("grammar:lark", "tool_choice")
    if calls is None:
        raise HTTPProblem(400, "the template of this model writes no tool calls that can be forced", key="tool_choice")
    return Grammar("lark", _calls(calls, fitting), "tools")


def call_or_text(service: Service, tools: list[Tool], format: AnswerFormat, text: Grammar) -> Grammar:
    """Return what makes a reply a call of one of the tools, or JSON. Raises BadRequest where the engine does not see to that."""
    service.need("grammar:lark", "tools")
    assert format.calls is not None
    called = _calls(format.calls, [tool.function for tool in tools]).replace("start:", "call:", 1)
    said = _spoken(text, format).replace("start:", "text:", 1)
    return Grammar("lark", f"start: call | text\n{said}{called}", text.key)


def behind_thought(service: Service, format: AnswerFormat, answer: Grammar) -> Grammar | None:
    """Return what lets a model think before an answer of a form; None where it has no thoughts, or none here, or the engine
    does not see to that.
    """
    if "grammar:lark" not in service.engine.supports:
        return None
    found = thoughtful(_spoken(answer, format), format)
    return None if found is None else Grammar("lark", found, answer.key)


def _spoken(answer: Grammar, format: AnswerFormat) -> str:
    """Return the form of an answer as a Lark grammar; calls are one already."""
    if answer.kind == "lark":
        return answer.text
    if answer.kind == "regex":
        return spoken(pattern_lark(answer.text), format)
    return spoken(json_lark(json.loads(answer.text or '{"type": "object"}')), format)


def _calls(calls: CallForm, functions: list[FunctionTool]) -> str:
    return calls.lark([(each.name, without_remarks(each.parameters or {"type": "object"})) for each in functions])
