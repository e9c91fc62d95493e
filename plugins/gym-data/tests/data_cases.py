"""Templates and small functions that several tests share."""

from collections.abc import Iterator
from itertools import pairwise
from typing import ClassVar

import numpy as np

from gym_data import Source

MARKED = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ m.content + '<|im_end|>' }}{% endif %}"
    "{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
UNMARKED = MARKED.replace("{% generation %}", "").replace("{% endgeneration %}", "")


def chat(*contents: str, system: str = "") -> list[dict]:
    """Messages of user and assistant in turns."""
    turns = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(contents)]
    return [{"role": "system", "content": system}, *turns] if system else turns


def text_of(tokenizer, ids, trained):
    """The text of the trained runs, joined by |."""
    edges = [0, *(np.flatnonzero(np.diff(trained)) + 1).tolist(), len(ids)]
    pieces = [tokenizer.decode(ids[a:b]) for a, b in pairwise(edges) if trained[a]]
    return "|".join(pieces)


class Foreign(Source):
    """A source of another package, which says what format its rows have."""

    target: ClassVar[str] = "data_cases:ForeignRows"
    format: ClassVar[str] = "messages"

    count: int = 2
    """How many rows."""


class ForeignRows:
    """The rows of that source."""

    def __init__(self, config: Foreign) -> None:
        self.config = config

    def rows(self) -> Iterator[dict]:
        return ({"messages": chat("say", str(number))} for number in range(self.config.count))

    def fingerprint(self) -> str:
        return f"foreign {self.config.count}"
