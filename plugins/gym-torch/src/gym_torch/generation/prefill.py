"""Prefill: which prompts are computed together, and long prompts that are computed in chunks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from transformers import DynamicCache

from gym_torch.generation.row import Row, Text

#: Tokens of padding in a pass over prompts that cost less than another pass, by device.
PADDING = {"cpu": 32}
ELSEWHERE = 128  #: the same, of other devices
MIN_COMMON = 64  #: tokens that prompts must have in common for a separate pass over them to pay


@dataclass
class ChunkedPrefill:
    """A long prompt of which the first tokens are computed, and the rows that continue it."""

    rows: Sequence[Row]  #: all of one text
    cache: DynamicCache  #: keys and values of the tokens that are done
    done: int  #: how many these are

    @property
    def left(self) -> int:
        """How many tokens are not computed yet."""
        return len(self.rows[0].prompt) - self.done


def prefill_batches(rows: Sequence[Row], left_of: Callable[[Sequence[Row]], int], device: str) -> list[list[Row]]:
    """Group rows by how many tokens are left to compute, so that a pass has little padding.

    Rows of one text stay together. Rows that a cache has most of are not grouped with rows that have much left.
    """
    alike: dict[Hashable, list[Row]] = {}
    for row in rows:
        alike.setdefault(row.text, []).append(row)
    left = {text: left_of(same[:1]) for text, same in alike.items()}
    known = any(left[text] < len(same[0].prompt) for text, same in alike.items())
    found: list[list[Row]] = []
    longest = padding = 0
    most = PADDING.get(device, ELSEWHERE)
    for text in sorted(alike, key=lambda text: -left[text]):
        padding += longest - left[text]
        if not found or padding > most or (known and left[text].bit_length() != longest.bit_length()):
            found.append([])
            longest, padding = left[text], 0
        found[-1] += alike[text]
    return found


def common_beginnings(texts: Iterable[Text]) -> list[Text]:
    """Return the common beginnings of prompts with the same key and scope; prompts without a scope are left out."""
    alike: dict[Hashable, list[Text]] = {}
    for key, scope, prompt in dict.fromkeys(texts):
        if scope is not None and len(prompt) > MIN_COMMON:
            alike.setdefault((key, scope, prompt[:MIN_COMMON]), []).append((key, scope, prompt))
    return [(*same[0][:2], _common([prompt for *_, prompt in same])) for same in alike.values() if len(same) > 1]


def _common(prompts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    first, last = min(prompts), max(prompts)  # all others lie between these two
    return first[
        : next((at for at, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first))
    ]
