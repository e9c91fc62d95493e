"""Rows in flight in llama.cpp: each has a sequence of its cache, and passes of its own, so that no reply depends on others."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import torch

from gym_serve.llama_cpp.library import Context
from gym_torch.generation.row import Row, extend


@dataclass(eq=False)
class Slot:
    """A sequence of the cache, and what is in it; when its row has left, the next one of the same scope may go on with it."""

    number: int
    tokens: list[int] = field(default_factory=list)
    scope: Hashable = None
    used: int = 0  #: when it was taken last

    def common(self, row: Row) -> int:
        """Return how many tokens of the prompt of a row are there; the last one is computed again, for its logits."""
        if row.scope is None or row.scope != self.scope:
            return 0
        pairs = zip(self.tokens, row.prompt[:-1], strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


@dataclass
class Begun:
    """A prompt whose first tokens are computed, and the rows that are to continue it."""

    rows: Sequence[Row]  #: all of one text
    slot: Slot

    @property
    def left(self) -> int:
        """How many tokens are not computed yet."""
        return len(self.rows[0].prompt) - len(self.slot.tokens)


class LlamaDecoding:
    """Rows of one model; `gym_torch.generation.row_decoder.RowDecoder` says what each method does."""

    def __init__(self, context: Context, slots: int, keeps: bool) -> None:
        """Begin without rows; with `keeps`, what is computed of a prompt serves later ones of its scope."""
        self.rows: list[Row] = []
        self._context, self._keeps = context, keeps
        self._slots = [Slot(number) for number in range(slots)]
        self._of: dict[Row, Slot] = {}
        self._turns = 0

    def admit(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Run the prompts of new rows, each distinct one once, and choose a token for each."""
        alike: dict[Hashable, list[Row]] = {}
        for row in rows:
            alike.setdefault(row.text, []).append(row)
        return [row for same in alike.values() for row in self.finish(self.begin(same))]

    def begin(self, rows: Sequence[Row]) -> Begun:
        """Take a slot for a prompt, with what it has of it already."""
        return Begun(rows, self._take(rows[0]))

    def advance(self, begun: Begun, count: int) -> None:
        """Compute so many more tokens of a prompt."""
        done = len(begun.slot.tokens)
        self._run(begun.slot, begun.rows[0].prompt[done : done + count])

    def finish(self, begun: Begun) -> Sequence[Row]:
        """Compute the rest of a prompt, and choose a token for each of its rows."""
        first, *others = begun.rows
        logits = self._run(begun.slot, first.prompt[len(begun.slot.tokens) :])
        self._of[first] = begun.slot
        for row in others:
            slot = self._free(row)
            self._context.copy(begun.slot.number, slot.number)
            slot.tokens, slot.scope, row.reused = [*begun.slot.tokens], row.scope, first.reused
        self.rows += begun.rows
        return self._chosen(begun.rows, logits.expand(len(begun.rows), -1))

    def step(self) -> Sequence[Row]:
        """Choose a token for every row; return them all."""
        logits = [self._run(self._of[row], row.completion.tokens[-1:]) for row in self.rows]
        return self._chosen(list(self.rows), torch.stack(logits))

    def drop(self, rows: Collection[Row]) -> None:
        """Let rows go; what was computed for them stays until the slot is needed."""
        for row in rows:
            slot = self._of.pop(row, None)
            if slot is not None and not self._keeps:
                slot.scope = None
        gone = set(map(id, rows))
        self.rows = [row for row in self.rows if id(row) not in gone]

    def _chosen(self, rows: Sequence[Row], logits: torch.Tensor) -> Sequence[Row]:
        going = extend(rows, logits)
        self.drop([row for row, goes in zip(rows, going, strict=True) if not goes])
        return rows

    def _run(self, slot: Slot, tokens: Sequence[int]) -> torch.Tensor:
        logits = self._context.compute(slot.number, len(slot.tokens), tokens)
        slot.tokens += tokens
        return logits

    def _take(self, row: Row) -> Slot:
        """Return a free slot with as much of the prompt of a row as there is, and nothing else."""
        slot = self._free(row)
        row.reused = self._context.cut(slot.number, slot.common(row))
        slot.tokens, slot.scope = slot.tokens[: row.reused], row.scope
        return slot

    def _free(self, row: Row) -> Slot:
        """Give a row the free slot that has most of its prompt, or was not used for longest."""
        taken = {id(slot) for slot in self._of.values()}
        free = [slot for slot in self._slots if id(slot) not in taken]
        slot = max(free, key=lambda each: (each.common(row), -each.used))
        self._turns += 1
        slot.used = self._turns
        self._of[row] = slot
        return slot
