"""Prompts without a tokenizer: what is asked of a model behind a server, in the order and the split of training."""

from __future__ import annotations

from gym_core import DataError
from gym_data.config import DatasetConfig
from gym_data.kinds import Asked
from gym_data.mixing import divide
from gym_data.row_reader import Reader
from gym_data.rows import Prompt


def prompts(config: DatasetConfig, seed: int) -> tuple[list[Asked], list[Asked]]:
    """Return the prompts to learn from and those held out. Raises DataError where none is left to learn from."""
    if config.media is not None:
        raise DataError("what is asked of a server is text", key="data.media", fix="leave it out, and rows with media")
    if config.streaming:
        raise DataError("all prompts are asked for at once", key="data.streaming", fix="leave it out")
    reader = Reader(config, "prompt", seed)
    found: list[Asked] = []
    orders: list[list[tuple[int, int]]] = [[] for _ in reader.opened]
    groups: dict[bytes, int] = {}
    group: list[int] = []
    for record in reader.records():
        assert isinstance(record.row, Prompt)  # `Reader` refuses others
        orders[record.source].append((len(found), record.times))
        group.append(groups.setdefault(record.key, len(groups)))
        messages = [dict(message) for message in record.row.conversation.messages]
        if config.system is not None and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": config.system})
        found.append(Asked(messages, record.row.row))
    if not all(orders):
        empty = next(opened.name for opened, order in zip(reader.opened, orders, strict=True) if not order)
        raise DataError("no row of it asks anything", where=empty, key="data")
    train, validation = divide(orders, group, config, seed)
    if not len(train):
        raise DataError(f"validation takes all {len(validation)} rows", key="data.validation", fix="hold out fewer")
    return [found[place] for place in train], [found[place] for place in validation]
