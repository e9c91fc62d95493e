"""Rewards in a process of their own: what goes there, and what is done there.

A row goes there as JSON. Of what JSON has no word for, dates, times, decimals and bytes arrive as what they are, and other things
not at all: a reward that asks for such a column is told that there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cache
from typing import Any, cast

from gym_core.component import load_object
from gym_rewards.reward import Logging, Reward, RewardInput, Selective
from gym_rewards.worker_process import Worker

MARK = "gym value"  #: key of a mapping that stands for one value

#: By name: a type, how one is written and how it is read.
_KINDS: dict[str, tuple[type, Any, Any]] = {
    "datetime": (datetime, datetime.isoformat, datetime.fromisoformat),  # before `date`, which it is too
    "date": (date, date.isoformat, date.fromisoformat),
    "time": (time, time.isoformat, time.fromisoformat),
    "timedelta": (timedelta, lambda value: value.total_seconds(), lambda value: timedelta(seconds=value)),
    "decimal": (Decimal, str, Decimal),
    "bytes": (bytes, bytes.hex, bytes.fromhex),
}

TALKS = ("messages", "turns")  #: what of a completion is messages, which may hold what no JSON does


class SeparateProcess:
    """A score that another process computes. It is there, and what it runs is imported, when this is built."""

    def __init__(self, reward: Reward, timeout: float) -> None:
        """Start the process and build the score in it; `timeout` is the seconds of a call.

        Raises `gym_rewards.worker_process.Raised` for what building it raises, and what a worker raises.
        """
        cls = type(reward)
        self.reference, self.options = f"{cls.__module__}:{cls.__qualname__}", reward.model_dump_json()
        self.worker = Worker("gym_rewards.separate_process:serve", timeout, ("columns", self.reference, self.options))
        self.columns: list[str] | None = self.worker.open()
        self.metrics: dict[str, list[float]] = {}  #: by name, what the reward had logged since somebody took it

    def __call__(self, inputs: Sequence[RewardInput], **known: Any) -> list[float | None]:
        """Return a number for each completion, or None; `known` is what the score takes beside. Raises as a worker does."""
        told = [
            {**vars(item), "row": self._row(item.row), **{name: _sent(getattr(item, name), []) for name in TALKS}}
            for item in inputs
        ]
        found, metrics = self.worker("scores", self.reference, self.options, told, known)
        self.metrics = {name: [*self.metrics.get(name, ()), *values] for name, values in metrics.items()}
        return cast(list[float | None], found)

    def close(self) -> None:
        """End the process."""
        self.worker.close()

    def _row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        wanted = row if self.columns is None else {name: row[name] for name in self.columns if name in row}
        return {
            str(name): packed for name, value in wanted.items() if (packed := _sent(value, _NOTHING)) is not _NOTHING
        }


_NOTHING = object()


def _sent(value: Any, otherwise: Any) -> Any:
    """Return a value as JSON holds it, or something else where it cannot."""
    try:
        return _packed(value)
    except TypeError:
        return otherwise


def _packed(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        parts = {str(name): _packed(part) for name, part in value.items()}
        return {MARK: ["mapping", parts]} if MARK in parts else parts
    if isinstance(value, list | tuple):
        return [_packed(part) for part in value]
    for name, (kind, write, _) in _KINDS.items():
        if isinstance(value, kind):
            return {MARK: [name, write(value)]}
    raise TypeError(f"a {type(value).__name__} is nothing that JSON holds")


def _unpacked(value: Any) -> Any:
    if isinstance(value, list):
        return [_unpacked(part) for part in value]
    if not isinstance(value, dict):
        return value
    if value.keys() != {MARK}:
        return {name: _unpacked(part) for name, part in value.items()}
    kind, content = value[MARK]
    return {name: _unpacked(part) for name, part in content.items()} if kind == "mapping" else _KINDS[kind][2](content)


def serve(what: str, reference: str, options: str, *more: Any) -> Any:
    """Do what `SeparateProcess` asks for, in the process that it made: say what columns are read, or score completions."""
    reward, score = _built(reference, options)
    if what == "columns":
        columns = cast(Selective, score).columns if reward.names_columns else None
        return None if columns is None else list(columns)
    told, known = more
    inputs = [RewardInput(**each | {name: _unpacked(each[name]) for name in ("row", *TALKS)}) for each in told]
    if not reward.logs_metrics:
        return plain(score(inputs, **known)), {}
    logging = cast(Logging, score)
    logging.metrics.clear()
    return plain(score(inputs, **known)), dict(logging.metrics)


@cache
def _built(reference: str, options: str) -> tuple[Reward, Callable[..., Sequence[float | None]]]:
    cls: type[Reward] = load_object(reference)
    reward = cls.model_validate_json(options)
    return reward, reward.build()


def plain(scores: Any) -> list[float | None]:
    """Return numbers as numbers of Python, whatever library they are of. Raises TypeError for what has no number a completion."""
    if isinstance(scores, Mapping | Set | str | bytes):
        raise TypeError(
            f"a reward returns a list with a number for each completion, and this one a {type(scores).__name__}"
        )
    return [None if score is None else float(score) for score in scores]
