"""In which order the examples of several sources follow each other, and which of them are kept for validation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import chain, islice
from math import ceil
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from gym_core import DataError
from gym_data.config import DatasetConfig

T = TypeVar("T")

Order = npt.NDArray[np.int64]  #: numbers of examples


def order_of(numbers: Sequence[int]) -> Order:
    """Return numbers of examples as an array."""
    return np.asarray(numbers, dtype=np.int64)


def in_rounds(numbers: Sequence[int], times: Sequence[int]) -> Order:
    """Return numbers of examples, each as many times as it says: all of them once, then again those that come twice, and so on.

    So an example does not stand beside itself while there is another one.
    """
    each, often = order_of(numbers), order_of(times)
    return np.concatenate([each[often > number] for number in range(int(often.max(initial=0)))] or [each])


class _Turn(Generic[T]):
    """What is left of a source, which can begin again."""

    def __init__(self, source: Iterable[T]) -> None:
        """Look at the first of it."""
        self._source = source
        self._rest = iter(source)
        self._next = [*islice(self._rest, 1)]

    @property
    def used_up(self) -> bool:
        """Whether nothing is left."""
        return not self._next

    def take(self) -> T:
        """Return the next, and look at the one behind it."""
        (taken,) = self._next
        self._next = [*islice(self._rest, 1)]
        return taken

    def again(self) -> _Turn[T]:
        """Return it from its beginning. Raises DataError where there is nothing at all."""
        begun = _Turn(self._source)
        if begun.used_up:
            raise DataError("one of the sources that are mixed holds no rows", key="data.sources")
        return begun


def concat(sources: Sequence[Iterable[T]], weights: Sequence[float] | None, seed: int) -> Iterator[T]:
    """One source after the other."""
    return chain.from_iterable(sources)


def interleave_under(sources: Sequence[Iterable[T]], weights: Sequence[float] | None, seed: int) -> Iterator[T]:
    """In turns, until the first source is used up; strictly in turn all of them have had that round's."""
    left = [_Turn(source) for source in sources]
    for number in _turns(len(sources), weights, seed):
        if left[number].used_up:
            return
        yield left[number].take()
        if _ends(number, left, weights) and any(source.used_up for source in left):
            return


def interleave_over(sources: Sequence[Iterable[T]], weights: Sequence[float] | None, seed: int) -> Iterator[T]:
    """In turns, until the last source is used up; the others begin again. Strictly in turn the last round is whole."""
    left, used_up = [_Turn(source) for source in sources], set[int]()
    for number in _turns(len(sources), weights, seed):
        if left[number].used_up:
            left[number] = left[number].again()
        yield left[number].take()
        if left[number].used_up:
            used_up.add(number)
        if _ends(number, left, weights) and len(used_up) == len(sources):
            return


def interleave_once(sources: Sequence[Iterable[T]], weights: Sequence[float] | None, seed: int) -> Iterator[T]:
    """In turns, each example once; a source that is used up misses its turn."""
    left = [_Turn(source) for source in sources]
    for number in _turns(len(sources), weights, seed):
        if not left[number].used_up:
            yield left[number].take()
        elif all(source.used_up for source in left):
            return


MIXES: dict[str, Callable[[Sequence[Iterable[Any]], Sequence[float] | None, int], Iterator[Any]]] = {
    "concat": concat,
    "interleave_under": interleave_under,
    "interleave_over": interleave_over,
    "interleave_once": interleave_once,
}


def hold_out(
    order: Order, groups: Sequence[int], validation: float, seed: int, rows: Sequence[Hashable] | None = None
) -> tuple[Order, Order]:
    """Return the examples to train on and those to validate on; examples of one group stay together.

    `groups[i]` is the group of example `i`, `rows[i]` the row it comes from, by default one of its own; `validation` is a share
    of the rows below 1, or a number of them. Each example is held out once.
    """
    if not validation:
        return order, order[:0]
    examples = order_of(list(dict.fromkeys(order.tolist())))
    # Rows are counted: how many examples one becomes depends on the algorithm, and what is held out must not.
    each = {rows[example] if rows else example: groups[example] for example in examples.tolist()}
    wanted = int(validation) if validation >= 1 else ceil(validation * len(each))
    members = Counter(each.values())
    shuffled = np.random.default_rng(seed).permutation(order_of(list(members)))
    chosen, held = set(), 0
    for group in shuffled.tolist():
        if held >= wanted:
            break
        chosen.add(group)
        held += members[group]
    kept = np.asarray([groups[example] not in chosen for example in order], dtype=bool)
    aside = np.asarray([groups[example] in chosen for example in examples], dtype=bool)
    return order[kept], examples[aside]


def divide(
    drawn: Sequence[Sequence[tuple[int, int]]],
    groups: Sequence[int],
    config: DatasetConfig,
    seed: int,
    rows: Sequence[Hashable] | None = None,
) -> tuple[Order, Order]:
    """Return the examples to train on and those to validate on, mixed.

    `drawn` holds the number and the times of the examples of each source; sources after those to train on are for validation.
    `rows[i]` is the row that example `i` comes from, by default one of its own.
    """
    each = [in_rounds(*zip(*order, strict=True)) for order in drawn]
    train, aside = (
        np.fromiter(MIXES[config.mix](part, config.mix_weights, seed) if part else (), dtype=np.int64)
        for part in (each[: len(config.sources)], each[len(config.sources) :])
    )
    return (train, aside) if len(aside) else hold_out(train, groups, config.validation, seed, rows)


def _ends(number: int, sources: Sequence[object], weights: Sequence[float] | None) -> bool:
    """Whether mixing may end behind the turn of this source."""
    return weights is not None or number == len(sources) - 1


def _turns(count: int, weights: Sequence[float] | None, seed: int) -> Iterator[int]:
    """Yield whose turn it is, for ever."""
    if weights is None:
        while True:
            yield from range(count)
    random = np.random.default_rng(seed)
    shares = np.asarray(weights) / np.sum(weights)
    while True:
        yield from random.choice(count, size=1000, p=shares).tolist()
