"""Batches of prompts with several responses: each prompt is computed once, and its responses share it as a prefix.

Preference learning, reward models and reinforcement learning all lay their examples out like this. What a method learns from the
responses is not known here.
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


class PromptResponses(NamedTuple):
    """A prompt and the responses that continue it; what has more than tokens has it in its responses."""

    prompt: Tokens  #: [length], may be empty; not trained
    responses: tuple[Example, ...]  #: at least one; their trained tokens are the targets
    id: str = ""  #: of the prompt in messages


@dataclass(frozen=True, kw_only=True)
class ResponseBatch(Batch):
    """A batch of responses; its targets are their trained tokens, response after response."""

    owner: Tensor  #: [n] int64, number of the response of each target
    responses: int  #: how many there are
    columns: Mapping[str, Tensor]  #: by name; a value of each target `[n, ...]`, or of each response

    def sums(self, values: Tensor) -> Tensor:
        """Return the sum of values `[n]` over the targets of each response, `[responses]`."""
        return values.new_zeros(self.responses).index_add(0, self.owner, values)

    @property
    def lengths(self) -> Tensor:
        """Return the number of targets of each response, `[responses]` fp32."""
        return self.sums(torch.ones_like(self.owner, dtype=torch.float32))


def segments(groups: Sequence[PromptResponses]) -> tuple[list[Example], list[int | None]]:
    """Return prompts and responses as segments, and for each the number of the segment that is its prefix.

    A response has its prompt as prefix; a prompt has none, and an empty prompt is no segment.
    """
    pieces: list[Example] = []
    prefixes: list[int | None] = []
    for group in groups:
        prompt = len(pieces) if len(group.prompt) else None
        if prompt is not None:
            pieces.append(Piece(group.id, group.prompt, np.zeros(len(group.prompt), dtype=np.bool_)))
            prefixes.append(None)
        pieces.extend(group.responses)
        prefixes.extend([prompt] * len(group.responses))
    return pieces, prefixes


def lay_out(layout: Layout, groups: Sequence[PromptResponses], columns: Mapping[str, Tensor]) -> ResponseBatch:
    """Lay responses out behind their prompts.

    Args:
        layout: packs or pads the segments.
        groups: prompts with their responses, at least one.
        columns: of the batch, in the order of the responses and of their targets.

    Returns:
        The batch on the CPU.

    """
    batch = layout.lay_out(*segments(groups))
    owners = [-1] * batch.shared  # of each segment; -1 of a prompt, which has no targets
    count = 0
    for group in groups:
        owners += [-1] * (len(group.prompt) > 0)
        owners += range(count, count + len(group.responses))
        count += len(group.responses)
    return ResponseBatch(
        **{field.name: getattr(batch, field.name) for field in fields(Batch)},
        owner=torch.tensor(owners)[batch.target_segment],
        responses=count,
        columns=columns,
    )
