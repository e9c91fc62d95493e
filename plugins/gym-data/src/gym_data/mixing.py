"""In which order the examples of several sources follow each other, and which of them are kept for validation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from gym_data.config import DatasetConfig

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


def concat(sources: Sequence[Order], weights: Sequence[float] | None, seed: int) -> Order:
    """One source after the other."""
    return np.concatenate(sources)


def interleave_under(sources: Sequence[Order], weights: Sequence[float] | None, seed: int) -> Order:
    """In turns, until the first source is used up."""
    taken, order = [0] * len(sources), []
    for source in _turns(len(sources), weights, seed):
        if taken[source] == len(sources[source]):
            break
        order.append(sources[source][taken[source]])
        taken[source] += 1
    return order_of(order)


def interleave_over(sources: Sequence[Order], weights: Sequence[float] | None, seed: int) -> Order:
    """In turns, until the last source is used up; the others begin again."""
    taken, order = [0] * len(sources), []
    for source in _turns(len(sources), weights, seed):
        order.append(sources[source][taken[source] % len(sources[source])])
        taken[source] += 1
        if all(count >= len(examples) for count, examples in zip(taken, sources, strict=True)):
            break
    return order_of(order)


def interleave_once(sources: Sequence[Order], weights: Sequence[float] | None, seed: int) -> Order:
    """In turns, each example once; a source that is used up misses its turn."""
    taken, order, total = [0] * len(sources), [], sum(map(len, sources))
    for source in _turns(len(sources), weights, seed):
        if taken[source] < len(sources[source]):
            order.append(sources[source][taken[source]])
            taken[source] += 1
        if len(order) == total:
            break
    return order_of(order)


MIXES: dict[str, Callable[[Sequence[Order], Sequence[float] | None, int], Order]] = {
    "concat": concat,
    "interleave_under": interleave_under,
    "interleave_over": interleave_over,
    "interleave_once": interleave_once,
}


def hold_out(order: Order, groups: Sequence[int], validation: float, seed: int) -> tuple[Order, Order]:
    """Return the examples to train on and those to validate on; examples of one group stay together.

    `groups[i]` is the group of example `i`, `validation` a share below 1 or a number. Each example is held out once.
    """
    if not validation:
        return order, order[:0]
    examples = order_of(list(dict.fromkeys(order.tolist())))
    wanted = int(validation) if validation >= 1 else max(1, round(validation * len(examples)))
    members: dict[int, int] = {}
    for example in examples:
        group = groups[example]
        members[group] = members.get(group, 0) + 1
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
    drawn: Sequence[Sequence[tuple[int, int]]], groups: Sequence[int], config: DatasetConfig, seed: int
) -> tuple[Order, Order]:
    """Return the examples to train on and those to validate on, mixed.

    `drawn` holds the number and the times of the examples of each source; sources after those to train on are for validation.
    """
    each = [in_rounds(*zip(*order, strict=True)) for order in drawn]
    train, aside = (
        MIXES[config.mix](part, config.mix_weights, seed) if part else order_of(())
        for part in (each[: len(config.sources)], each[len(config.sources) :])
    )
    return (train, aside) if len(aside) else hold_out(train, groups, config.validation, seed)


def _turns(count: int, weights: Sequence[float] | None, seed: int) -> Iterator[int]:
    """Yield whose turn it is, for ever."""
    if weights is None:
        while True:
            yield from range(count)
    random = np.random.default_rng(seed)
    shares = np.asarray(weights) / np.sum(weights)
    while True:
        yield from random.choice(count, size=1000, p=shares).tolist()
