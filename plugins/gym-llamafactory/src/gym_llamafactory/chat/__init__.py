"""LLaMA-Factory's chat templates: one component whose formats are data, and how they make ids and masks of conversations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

from pydantic import field_validator

from gym_core.component import load_object
from gym_core.discovery import nearest
from gym_data.kinds import Template


class LlamaFactory(Template):
    """A chat template of LLaMA-Factory, with its ids, its mask and its way to share `cutoff` between prompt and answer."""

    target: ClassVar[str] = "gym_llamafactory.chat.formats:text"
    stands_in: ClassVar[bool] = True

    format: str | None = None
    """Name of the template, such as `qwen3`; without it, what the model's own chat template begins and ends turns with."""
    tool_format: str | None = None
    """How tools and calls are written, where not as the template says: `default`, `llama3`, `qwen`..."""
    enable_thinking: bool | None = True
    """Of templates that reason: whether an empty thought is learnt where an answer has none; null: it stands in the prompt;
    false: thoughts are taken out as well."""
    preserve_thinking: bool = False
    """Of templates that reason: whether earlier answers keep their thoughts where the last answer alone is trained on."""

    @field_validator("format")
    @classmethod
    def _known(cls, name: str | None) -> str | None:
        known = load_object("gym_llamafactory.chat.formats:known")()
        if name is not None and name not in known:
            near = nearest(name, known)
            raise ValueError(f"no such template; {f'did you mean `{near}`?' if near else f'there are {len(known)}'}")
        return name

    @field_validator("tool_format")
    @classmethod
    def _written(cls, name: str | None) -> str | None:
        known = load_object("gym_llamafactory.chat.tools:known")()
        if name is not None and name not in known:
            raise ValueError(f"tools are not written so here; known: {', '.join(known)}")
        return name

    @property
    def title(self) -> str:
        """Return what a preview says of it."""
        return f"LLaMA-Factory's {self.format or 'reading of the template of the model'}"

    def lacking(self, has: Callable[[str], bool]) -> list[str]:
        """Return the token that ends a turn, where the tokenizer does not have it."""
        found: list[str] = load_object("gym_llamafactory.chat.formats:ends")(self.format)
        return [token for token in found if not has(token)]

    def dated(self) -> bool:
        """Return whether tools on offer are written with the day."""
        found: bool = load_object("gym_llamafactory.chat.tools:dated")(self)
        return found

    def encoders(self) -> Mapping[str, Callable[[Any, Any], Iterator[Any]]]:
        """Return how rows of each shape that LLaMA-Factory knows become sequences."""
        found: Mapping[str, Callable[..., Iterator[Any]]] = load_object("gym_llamafactory.chat.encoding:ENCODERS")
        return {shape: partial(encode, self) for shape, encode in found.items()}
