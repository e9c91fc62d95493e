"""Named chat templates: each a jinja file beside this one, and the special tokens without which it means nothing.

They are written from the public descriptions of the formats. A model's own template is the better choice wherever it
has one.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from gym_data.kinds import Template

__all__ = [
    "Alpaca",
    "ChatML",
    "Default",
    "Gemma",
    "Jinja",
    "Llama3",
    "Mistral",
    "Qwen",
    "Qwen3",
    "Qwen3NoThink",
    "Vicuna",
    "Zephyr",
]


class JinjaFile(Template):
    """A template of this package."""

    target: ClassVar[str] = "gym_data.templates.load:read"
    file: ClassVar[str]
    """Name of the jinja file."""
    needs: ClassVar[tuple[str, ...]] = ("eos_token",)


class Jinja(Template):
    """A template that the recipe itself holds."""

    target: ClassVar[str] = "gym_data.templates.load:given"

    text: Annotated[
        str, Field(min_length=1, examples=["{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"])
    ]
    """Text of the template; it is rendered in a sandbox."""


class ChatML(JinjaFile):
    """`<|im_start|>role`, content, `<|im_end|>`."""

    file: ClassVar[str] = "chatml.jinja"
    needs: ClassVar[tuple[str, ...]] = ("<|im_start|>", "<|im_end|>")


class Qwen(JinjaFile):
    """ChatML with Qwen2.5's system message and tools."""

    file: ClassVar[str] = "qwen.jinja"
    needs: ClassVar[tuple[str, ...]] = ("<|im_start|>", "<|im_end|>")


class Qwen3(JinjaFile):
    """ChatML with Qwen3's reasoning blocks, which earlier turns lose, and tools."""

    file: ClassVar[str] = "qwen3.jinja"
    needs: ClassVar[tuple[str, ...]] = ("<|im_start|>", "<|im_end|>")


class Qwen3NoThink(JinjaFile):
    """ChatML with the tools of Qwen3's models that do not reason."""

    file: ClassVar[str] = "qwen3_nothink.jinja"
    needs: ClassVar[tuple[str, ...]] = ("<|im_start|>", "<|im_end|>")


class Llama3(JinjaFile):
    """Llama 3's headers and `<|eot_id|>`, with tools as JSON."""

    file: ClassVar[str] = "llama3.jinja"
    needs: ClassVar[tuple[str, ...]] = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")


class Mistral(JinjaFile):
    """`[INST]` and `[/INST]` around the user; the system message stands before the first user message."""

    file: ClassVar[str] = "mistral.jinja"
    needs: ClassVar[tuple[str, ...]] = ("bos_token", "eos_token")


class Gemma(JinjaFile):
    """`<start_of_turn>` and `<end_of_turn>`; the system message stands before the first user message."""

    file: ClassVar[str] = "gemma.jinja"
    needs: ClassVar[tuple[str, ...]] = ("bos_token", "<start_of_turn>", "<end_of_turn>")


class Alpaca(JinjaFile):
    """`### Instruction:` and `### Response:`, for models without chat tokens."""

    file: ClassVar[str] = "alpaca.jinja"


class Default(JinjaFile):
    """`Human:` and `Assistant:`, for models without chat tokens."""

    file: ClassVar[str] = "default.jinja"


class Vicuna(JinjaFile):
    """`USER:` and `ASSISTANT:` on one line, for models without chat tokens."""

    file: ClassVar[str] = "vicuna.jinja"


class Zephyr(JinjaFile):
    """`<|user|>` and `<|assistant|>` as text, each turn closed by the end-of-text token."""

    file: ClassVar[str] = "zephyr.jinja"
