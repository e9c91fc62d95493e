"""Mixed precision: how each weight is coded, so that the sum of the errors is least within the bytes of a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gym_bitdelta.config.base import DeltaOptions
from gym_bitdelta.config.file_size_bound import NOTHING, file_bytes, header_bytes
from gym_bitdelta.delta.header import data_bytes
from gym_bitdelta.delta.records import Record
from gym_core import GymError
from gym_quant.post_training.mixed import cheapest

ROUNDS = 8  #: of making room for the header, which is known when all is chosen


class Choice(NamedTuple):
    """A way to code a weight, and what it costs."""

    record: Record
    error: float  #: squared, weighted by the inputs where they are known


def within(
    config: DeltaOptions,
    fixed: Mapping[str, Record],
    choices: Mapping[str, Sequence[Choice]],
    changed: Mapping[str, Any] = NOTHING,
) -> dict[str, Record]:
    """Return a record for each weight that has choices, with the least sum of errors in a file of `config.budget()` bytes.

    `fixed` are the records of the others; what it says of weights that have choices is not looked at. `changed` is that of the
    header. Raises GymError where not even the smallest choices fit.
    """
    budget = config.budget()
    assert budget is not None
    others = {name: record.entry for name, record in fixed.items() if name not in choices}
    names = list(choices)
    sizes = [[float(data_bytes({"": choice.record.entry})) for choice in choices[name]] for name in names]
    errors = [[choice.error for choice in choices[name]] for name in names]
    header = config.said(), changed, config.provenance()
    room = float(budget - data_bytes(others) - header_bytes(others, *header))
    for _ in range(ROUNDS):
        picked = cheapest(errors, sizes, room)
        if picked is None:
            break
        found = {name: choices[name][place].record for name, place in zip(names, picked, strict=True)}
        entries = others | {name: record.entry for name, record in found.items()}
        over = file_bytes(entries, *header) - budget
        if over <= 0:
            return found
        room -= over
    least = data_bytes(others) + sum(map(min, sizes)) if sizes else data_bytes(others)
    raise GymError(
        f"the smallest choices take {least:,.0f} bytes and a header, above max_bytes: {budget:,}",
        key="quantization.max_bytes",
        fix="raise it",
    )
