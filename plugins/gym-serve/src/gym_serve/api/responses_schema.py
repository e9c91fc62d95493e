"""Conversations of OpenAI's responses, and the same in the form of its chat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator

from gym_serve.api.chat_completions import ChatCompletion, StreamOptions
from gym_serve.api.chat_schema import (
    Call,
    ChatMessage,
    Function,
    FunctionTool,
    ImagePart,
    ImageURL,
    JsonSchema,
    Name,
    NamedFunction,
    NamedTool,
    Offered,
    Part,
    ResponseFormat,
    TextPart,
    Tool,
    ToolChoice,
    data_url,
)
from gym_serve.api.errors import HTTPProblem
from gym_serve.api.fields import Body, Count, Ignored
from gym_serve.sampling_bounds import Temperature, TopP
from gym_serve.template_options import Effort, TemplateOptions


class Text(Body):
    """Text of a message."""

    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None
    parsed: Any = None  #: what its client read of it


class InputImage(Body):
    """An image in a message of the user."""

    type: Literal["input_image"]
    image_url: str
    detail: Literal["auto", "high"] | None = None

    @field_validator("image_url")
    @classmethod
    def _is_data(cls, url: str) -> str:
        return data_url(url)


def _part(part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else getattr(part, "type", None)
    return "Image" if kind == "input_image" else "Text"


class InputMessage(Body):
    """A message."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: (
        str | list[Annotated[Annotated[Text, Tag("Text")] | Annotated[InputImage, Tag("Image")], Discriminator(_part)]]
    )
    id: str | None = None
    status: str | None = None


class FunctionCall(Body):
    """A call of the assistant."""

    type: Literal["function_call"]
    call_id: Annotated[str, Field(max_length=256)]
    name: Name
    arguments: str
    parsed_arguments: Any = None  #: what its client read of them
    id: str | None = None
    status: str | None = None


class FunctionCallOutput(Body):
    """What a function returned."""

    type: Literal["function_call_output"]
    call_id: Annotated[str, Field(max_length=256)]
    output: str | list[Text]
    id: str | None = None
    status: str | None = None


class ThoughtText(Body):
    """Text of a thought."""

    type: Literal["reasoning_text", "summary_text"]
    text: str


class Thought(Body):
    """A thought of the assistant, of which its text is read, or where there is none that of its summary."""

    type: Literal["reasoning"]
    id: str | None = None
    summary: list[ThoughtText] | None = None
    content: list[ThoughtText] | None = None
    status: str | None = None


class FlatTool(Offered):
    """A function on offer."""

    type: Literal["function"]
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FlatChoice(Body):
    """The function that must be called."""

    type: Literal["function"]
    name: Name


class TextFormat(Body):
    """What the text must look like."""

    type: Literal["text", "json_object", "json_schema"]
    name: Name | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None

    def converted(self) -> ResponseFormat:
        """Return the same in the form of chat completions."""
        if self.type != "json_schema":
            return ResponseFormat(type=self.type)
        schema = JsonSchema.model_validate({"name": self.name or "reply", "schema": self.schema_})
        return ResponseFormat(type=self.type, json_schema=schema)


class TextOptions(Body):
    """What is asked of the text."""

    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


Summary = Literal["auto", "concise", "detailed"]


class Reasoning(Body):
    """How much is thought before an answer. Thoughts are shown as they are, whatever is asked of their summary."""

    effort: Effort | None = None
    summary: Summary | None = None
    generate_summary: Summary | None = None


LOGPROBS = "message.output_text.logprobs"
#: thoughts are there for the next turn as they are; no item has anything else of this
Included = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]
FORMS = {
    "message": "Message",
    "function_call": "Call",
    "function_call_output": "Output",
    "reasoning": "Thought",
}  #: of items, by type


def _form(item: Any) -> str | None:
    """Return the form of an item: without a type it is a message."""
    kind = item.get("type") if isinstance(item, dict) else getattr(item, "type", None)
    return FORMS.get(kind or "message") if isinstance(kind, str | None) else None


Item = Annotated[
    Annotated[InputMessage, Tag("Message")]
    | Annotated[FunctionCall, Tag("Call")]
    | Annotated[FunctionCallOutput, Tag("Output")]
    | Annotated[Thought, Tag("Thought")],
    Discriminator(_form, "item_type", f"an item that nobody reads here: of the types, {', '.join(FORMS)} are known"),
]


class Responses(Ignored):
    """A conversation to go on with."""

    model: Annotated[str, Field(max_length=512)]
    input: str | Annotated[list[Item], Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    stream: bool | None = None
    tools: list[FlatTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | FlatChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    truncation: Literal["disabled"] | None = None
    include: list[Included] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    stream_options: StreamOptions | None = None
    background: Literal[False] | None = None
    max_tool_calls: Count | None = None  #: of tools that the server calls, of which there are none
    reasoning: Reasoning | None = None
    chat_template_kwargs: TemplateOptions | None = None

    @property
    def logprobs(self) -> bool:
        """Whether the text is told with its log-probabilities. Raises BadRequest where it would not be told which are its own."""
        asked = bool(self.top_logprobs) or LOGPROBS in (self.include or ())
        if asked and self.tools:
            why = "log-probabilities beside tools are told by `/v1/chat/completions`"
            raise HTTPProblem(400, why, key="top_logprobs" if self.top_logprobs else "include")
        return asked

    def converted(self) -> ChatCompletion:
        """Return the same in the form of chat completions."""
        given = self.input if not isinstance(self.input, str) else [InputMessage(role="user", content=self.input)]
        found = [ChatMessage(role="system", content=self.instructions)] if self.instructions else []
        for item in given:
            _append(found, item)
        choice: ToolChoice | None
        if isinstance(self.tool_choice, FlatChoice):
            choice = NamedTool(type="function", function=NamedFunction(name=self.tool_choice.name))
        else:
            choice = self.tool_choice
        functions = [FunctionTool(**tool.model_dump(exclude={"type"})) for tool in self.tools or ()]
        return ChatCompletion(
            model=self.model,
            messages=found or [ChatMessage(role="user", content="")],
            max_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            tools=[Tool(type="function", function=each) for each in functions] or None,
            tool_choice=choice,
            parallel_tool_calls=self.parallel_tool_calls,
            reasoning_effort=self.reasoning.effort if self.reasoning else None,
            chat_template_kwargs=self.chat_template_kwargs,
            logprobs=self.logprobs,
            top_logprobs=self.top_logprobs,
            response_format=self.text.format.converted() if self.text and self.text.format else None,
        )


def _append(found: list[ChatMessage], item: Item) -> None:
    """Add an item to a conversation: calls and thoughts belong to the answer that they stand in."""
    last = found[-1] if found and found[-1].role == "assistant" else None
    if item.type == "message" and item.role == "assistant" and last and not (last.content or last.tool_calls):
        found[-1] = last.model_copy(update={"content": _content(item.content)})  # behind its thought
    elif item.type == "message":
        found.append(ChatMessage(role=item.role, content=_content(item.content)))
    elif item.type == "reasoning":
        thought = "\n".join(part.text for part in item.content or item.summary or ())
        found.append(ChatMessage(role="assistant", reasoning_content=thought or None))
    elif item.type == "function_call_output":
        found.append(ChatMessage(role="tool", tool_call_id=item.call_id, content=_text(item.output)))
    else:
        call = Call(id=item.call_id, function=Function(name=item.name, arguments=item.arguments))
        if last:
            found.pop()
        last = last or ChatMessage(role="assistant")
        found.append(last.model_copy(update={"tool_calls": [*(last.tool_calls or ()), call]}))


def _text(content: str | Sequence[Text]) -> str:
    return content if isinstance(content, str) else "\n".join(part.text for part in content)


def _content(content: str | Sequence[Text | InputImage]) -> str | list[Part]:
    if isinstance(content, str):
        return content
    return [
        TextPart(type="text", text=part.text)
        if isinstance(part, Text)
        else ImagePart(type="image_url", image_url=ImageURL(url=part.image_url))
        for part in content
    ]
