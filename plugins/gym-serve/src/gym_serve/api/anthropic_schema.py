"""Conversations of Anthropic's API, and the same in OpenAI's form."""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from gym_serve.api.chat_completions import ChatCompletion
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
)
from gym_serve.api.errors import HTTPProblem
from gym_serve.api.fields import Body, Count
from gym_serve.template_options import Effort


class Cached(Body):
    """A block; what it says of a cache changes nothing, as equal beginnings are found anyway."""

    cache_control: dict[str, Any] | None = None


class TextBlock(Cached):
    """Text."""

    type: Literal["text"]
    text: str


class ImageSource(Body):
    """The bytes of an image. No address is fetched, and nothing is stored to be named later."""

    type: Literal["base64"]
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: Annotated[str, Field(min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _base64(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("type") in ("url", "file"):
            why = "an image is sent in base64: no address is fetched, and no file read"
            raise PydanticCustomError("image_source", why)
        return given


class ImageBlock(Cached):
    """An image in a message of the user."""

    type: Literal["image"]
    source: ImageSource

    def part(self) -> ImagePart:
        """Return the same in OpenAI's form."""
        url = f"data:{self.source.media_type};base64,{self.source.data}"
        return ImagePart(type="image_url", image_url=ImageURL(url=url))


class ThinkingBlock(Cached):
    """A thought of the assistant."""

    type: Literal["thinking"]
    thinking: str
    signature: str = ""


class ToolUseBlock(Cached):
    """A call of the assistant."""

    type: Literal["tool_use"]
    id: Annotated[str, Field(max_length=256)]
    name: Name
    input: dict[str, Any]
    caller: dict[str, Any] | None = None


class ToolResultBlock(Cached):
    """What a tool returned."""

    type: Literal["tool_result"]
    tool_use_id: Annotated[str, Field(max_length=256)]
    content: str | list[TextBlock] = ""
    is_error: bool | None = None

    def told(self) -> str:
        """Return what a model reads of it: no template has a place for whether it failed."""
        return ": ".join(part for part in ("Error" * bool(self.is_error), _text(self.content)) if part)


Block = Annotated[TextBlock | ImageBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock, Field(discriminator="type")]


class InputMessage(Body):
    """A message."""

    role: Literal["user", "assistant"]
    content: str | list[Block]


class InputTool(Cached, Offered):
    """A tool on offer. How its arguments reach the client, and that no other tool calls it, is so anyway."""

    kind: ClassVar[str] = "custom"
    type: Literal["custom"] | None = None
    name: Name
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    eager_input_streaming: bool | None = None
    defer_loading: Literal[False] | None = None
    allowed_callers: list[Literal["direct"]] | None = None


class Choice(Body):
    """Whether a tool must be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Body):
    """Whether the model thinks before it answers: where that is `adaptive`, as its template has it."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None
    display: str | None = None


class OutputFormat(Body):
    """What the text must look like."""

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(Body):
    """How an answer is made."""

    effort: Effort | None = None
    format: OutputFormat | None = None


class KeptThoughts(Body):
    """An edit of the conversation that leaves it as it is."""

    type: Literal["clear_thinking_20251015"]
    keep: Literal["all"]


class ContextManagement(Body):
    """What is taken from the conversation: nothing."""

    edits: list[KeptThoughts] | None = None


class Metadata(Body):
    """Of whom the request is; it changes nothing."""

    user_id: str | None = None


class Prompt(Body):
    """A conversation."""

    model: Annotated[str, Field(max_length=512)]
    messages: Annotated[list[InputMessage], Field(min_length=1)]
    system: str | list[TextBlock] | None = None
    tools: list[InputTool] | None = None
    tool_choice: Choice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    context_management: ContextManagement | None = None
    cache_control: dict[str, Any] | None = None
    speed: Literal["standard"] | None = None

    def converted(self, **further: Any) -> ChatCompletion:
        """Return the same in OpenAI's form."""
        found = [ChatMessage(role="system", content=_text(self.system))] if self.system else []
        for message in self.messages:
            found += _messages(message)
        choice = self.tool_choice or Choice(type="auto")
        if choice.type == "tool" and choice.name is None:
            raise HTTPProblem(400, "names no tool", key="tool_choice.name")
        named = NamedTool(type="function", function=NamedFunction(name=choice.name or "none"))
        choices: dict[str, ToolChoice] = {"auto": "auto", "any": "required", "none": "none", "tool": named}
        thinks = {"enabled": True, "disabled": False}.get(self.thinking.type) if self.thinking else None
        asked = self.output_config or OutputConfig()
        schema = asked.format and JsonSchema.model_validate({"name": "answer", "schema": asked.format.schema_})
        return ChatCompletion(
            model=self.model,
            messages=found,
            tools=[_tool(tool) for tool in self.tools] if self.tools else None,
            tool_choice=choices[choice.type],
            parallel_tool_calls=not choice.disable_parallel_tool_use,
            chat_template_kwargs=None if thinks is None else {"enable_thinking": thinks},
            reasoning_effort=asked.effort,
            response_format=ResponseFormat(type="json_schema", json_schema=schema) if schema else None,
            continue_final_message=self.messages[-1].role == "assistant",
            **further,
        )


class Message(Prompt):
    """A conversation to go on with."""

    max_tokens: Count
    stream: bool | None = None
    stop_sequences: Annotated[list[str], Field(max_length=16)] | None = None
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None


def _tool(tool: InputTool) -> Tool:
    function = FunctionTool(name=tool.name, description=tool.description, parameters=tool.input_schema)
    return Tool(type="function", function=function)


def _text(blocks: str | list[TextBlock]) -> str:
    return blocks if isinstance(blocks, str) else "\n".join(block.text for block in blocks)


def _messages(message: InputMessage) -> list[ChatMessage]:
    """Return the messages that one of Anthropic's stands for: results of tools are messages of their own."""
    if isinstance(message.content, str):
        return [ChatMessage(role=message.role, content=message.content)]
    found: list[ChatMessage] = []
    parts: list[Part] = []
    thoughts: list[str] = []
    calls: list[Call] = []
    for block in message.content:
        if block.type == "text":
            parts.append(TextPart(type="text", text=block.text))
        elif block.type == "image":
            parts.append(block.part())
        elif block.type == "thinking":
            thoughts.append(block.thinking)
        elif block.type == "tool_use":
            calls.append(Call(id=block.id, function=Function(name=block.name, arguments=json.dumps(block.input))))
        else:
            found.append(ChatMessage(role="tool", tool_call_id=block.tool_use_id, content=block.told()))
    if parts or calls or thoughts or not found:
        thought = "\n".join(thoughts) or None
        found.append(ChatMessage(role=message.role, content=parts, tool_calls=calls or None, reasoning_content=thought))
    return found
