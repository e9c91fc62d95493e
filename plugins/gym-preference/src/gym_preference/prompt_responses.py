"""Answers over prompts that stand once: what all preference learning is laid out as.

An algorithm says of each example which prompt and which answers it has; what it learns from these is not known here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gym_data.tokenizer import Tokens
from gym_torch.batch import Batch, Example, Piece
from gym_torch.packing import Layout


class Answered(NamedTuple):
    """A prompt, and answers that continue it."""

    prompt: Tokens  #: [length], may be empty; nothing of it is learnt
    answers: tuple[Example, ...]  #: of their tokens, those that are trained count


@dataclass(frozen=True, kw_only=True)
class AnswerBatch(Batch):
    """A batch of answers; its targets are their tokens, answer after answer."""

    owner: Tensor  #: [n] int64, number of the answer of each target
    answers: int
    columns: Mapping[str, Tensor]  #: by name; of each target `[n]` (`reference`, once it is known), or of each answer

    def sums(self, values: Tensor) -> Tensor:
        """Return the sum of values `[n]` over the tokens of each answer, `[answers]`."""
        return values.new_zeros(self.answers).index_add(0, self.owner, values)

    @property
    def lengths(self) -> Tensor:
        """Return the trained tokens of each answer, `[answers]` fp32."""
        return self.sums(torch.ones_like(self.owner, dtype=torch.float32))


def lay_out(layout: Layout, answered: Sequence[Answered], columns: Mapping[str, Tensor]) -> AnswerBatch:
    """Lay out answers, those to one prompt behind a single copy of it."""
    pieces: list[Example] = []
    prefixes: list[int | None] = []
    numbers: list[int] = []
    count = 0
    for each in answered:
        prompt = len(pieces) if len(each.prompt) else None
        if prompt is not None:
            nothing = np.zeros(len(each.prompt), dtype=np.bool_)
            pieces.append(Piece(each.answers[0].id, each.prompt, nothing))
            prefixes.append(None)
            numbers.append(-1)  # a prompt is no answer, and nothing of it is a target
        pieces.extend(each.answers)
        prefixes.extend([prompt] * len(each.answers))
        numbers.extend(range(count, count + len(each.answers)))
        count += len(each.answers)
    batch = layout.lay_out(pieces, prefixes)
    return AnswerBatch(
        **{field.name: getattr(batch, field.name) for field in fields(Batch)},
        owner=torch.tensor(numbers)[batch.target_segment],
        answers=count,
        columns=columns,
    )
