"""Rows that are computed one by one, each with a cache of its own: those whose prompts have more than tokens, such as images.

Every pass is told its positions. Where nobody does, models with positions in several dimensions take what they noted of the last
prompt that they saw, which may be that of another row.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import deepcopy
from typing import Any, NoReturn

import numpy.typing as npt
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from gym_torch.generation.row import Row, extend


class _Text:
    """What is kept of a row: its tokens but the newest are in the cache."""

    def __init__(self, model: PreTrainedModel, row: Row) -> None:
        """Begin with the positions of its prompt, as the model lays them out in one or several dimensions."""
        self.cache = DynamicCache(config=model.config.get_text_config())
        self.tokens = torch.tensor([row.prompt], device=model.device)
        self.inputs = {name: _on(model, value) for name, value in (row.inputs() if row.inputs else {}).items()}
        told = {**self.inputs, "attention_mask": torch.ones_like(self.tokens)}
        self.positions: Tensor = model._prepare_position_ids_for_generation(self.tokens, told)

    def grow(self, token: int) -> None:
        """Append a token."""
        self.tokens, self.positions = self.tokens.new_tensor([[token]]), self.positions[..., -1:] + 1


def _on(model: PreTrainedModel, value: npt.NDArray[Any]) -> Tensor:
    """Return an input on the device of a model, numbers with a fraction in its precision."""
    tensor = torch.from_numpy(value).to(model.device)
    return tensor.to(model.dtype) if tensor.is_floating_point() else tensor


class SeparateRows:
    """A `gym_torch.generation.row_decoder.RowDecoder` whose rows share no pass."""

    def __init__(self, model: PreTrainedModel) -> None:
        """Begin without rows."""
        self.model = model.eval()
        self.rows: list[Row] = []
        self.texts: dict[Row, _Text] = {}

    def admit(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Run the prompts of new rows, and choose a token for each; where that fails, none of them is added.

        Rows with one prompt and the same `inputs` are computed once, and each goes on with a copy of what that left.
        """
        first = {(row.prompt, row.inputs): row for row in reversed(rows)}
        alike = [first[row.prompt, row.inputs] for row in rows]
        begun = {row: _Text(self.model, row) for row in dict.fromkeys(alike)}
        logits = dict(zip(begun, self._run(list(begun.values())), strict=True))
        self.texts |= {
            row: begun[own] if row is own else deepcopy(begun[own]) for row, own in zip(rows, alike, strict=True)
        }
        logits = torch.stack([logits[own] for own in alike])
        self.rows += rows
        return self._chosen(rows, logits)

    def begin(self, rows: Sequence[Row]) -> NoReturn:
        """Raise TypeError: prompts are computed as a whole, see `Lane.in_parts`."""
        raise TypeError("prompts with images are computed as a whole")

    def advance(self, begun: object, count: int) -> NoReturn:
        """Raise what `begin` does."""
        self.begin(())

    def finish(self, begun: object) -> NoReturn:
        """Raise what `begin` does."""
        self.begin(())

    def step(self) -> Sequence[Row]:
        """Choose a token for every row."""
        rows = list(self.rows)
        for row in rows:
            self.texts[row].grow(row.completion.tokens[-1])
        return self._chosen(rows, self._run([self.texts[row] for row in rows]))

    def drop(self, rows: Collection[Row]) -> None:
        """Remove rows, and free their memory."""
        self.texts = {row: text for row, text in self.texts.items() if row not in rows}
        self.rows = list(self.texts)

    @torch.no_grad()
    def _run(self, texts: Sequence[_Text]) -> Tensor:
        """Return the logits `[rows, vocabulary]` that follow the texts."""
        found = []
        for text in texts:
            seen = text.cache.get_seq_length() + text.tokens.shape[1]
            output = self.model(
                input_ids=text.tokens,
                attention_mask=text.tokens.new_ones(1, seen),
                position_ids=text.positions,
                past_key_values=text.cache,
                use_cache=True,
                logits_to_keep=1,
                **text.inputs,
            )
            text.inputs = {}  # they are in the cache by now
            found.append(output.logits[:, -1])
        return torch.cat(found)

    def _chosen(self, rows: Sequence[Row], logits: Tensor) -> Sequence[Row]:
        going_on = extend(rows, logits)
        self.drop([row for row, goes in zip(rows, going_on, strict=True) if not goes])
        return rows
