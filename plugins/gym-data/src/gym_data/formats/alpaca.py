"""Alpaca rows: instruction, input, output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gym_data.formats import Alpaca
from gym_data.formats.media import marks_in, media_of, placed_media
from gym_data.formats.parsing import (
    EMPTY,
    UntrainableRowError,
    check,
    column,
    load_json,
    text_of,
    tools_of,
    values_of,
)
from gym_data.rows import Conversation, Message


class AlpacaReader:
    """Makes a conversation of a row."""

    def __init__(self, config: Alpaca) -> None:
        """Hold the column names."""
        self.config = config

    def convert(self, row: Mapping[str, Any]) -> Conversation:
        """Return the row with its answer. Raises ValueError for a row without one."""
        prompt = self.prompt(row)
        what = f"the answer (column `{self.config.response}`)"
        answer = text_of(column(row, self.config.response), what)
        if not answer.strip():
            raise UntrainableRowError(EMPTY, f"{what} is empty")
        read = replace(prompt, messages=(*prompt.messages, {"role": "assistant", "content": answer}))
        check(read.messages, answered=True)
        return read

    def prompt(self, row: Mapping[str, Any]) -> Conversation:
        """Return what comes before the answer."""
        config = self.config
        messages: list[Message] = []
        system = column(row, config.system)
        if system:
            messages.append({"role": "system", "content": text_of(system, "the system message")})
        history, what = column(row, config.history) or [], f"the history (column `{config.history}`)"
        history = load_json(history, what) if isinstance(history, str) else history  # a cell of a table
        if not isinstance(history, list) or not all(isinstance(turn, list) and len(turn) == 2 for turn in history):
            raise ValueError(f"{what} is not a list of [instruction, answer]")
        for turn in history:
            messages.append({"role": "user", "content": text_of(turn[0], "the history")})
            messages.append({"role": "assistant", "content": text_of(turn[1], "the history")})
        asked, query = column(row, config.prompt), column(row, config.query)
        under = "" if query is None else text_of(query, f"the input (column `{config.query}`)")
        # An input alone will do, also where what stands over it is null.
        over = "" if asked is None and under else text_of(asked, f"the prompt (column `{config.prompt}`)")
        messages.append({"role": "user", "content": "\n".join(part for part in (over, under) if part)})
        values = values_of(column(row, config.chat_template_kwargs), f"column `{config.chat_template_kwargs}`")
        own = [each for message in messages for each in marks_in(message["content"])]
        messages, media = placed_media(messages, own, media_of(row, config.media))
        return Conversation(tuple(messages), tools_of(column(row, config.tools)), values=values, media=media)

    def asked(self, row: Mapping[str, Any]) -> tuple[Conversation, str]:
        """Return the prompt of a row, and its answer where it holds one."""
        prompt, answer = self.prompt(row), column(row, self.config.response)
        check(prompt.messages, answered=False)
        return prompt, answer if isinstance(answer, str) else ""

    def message(self, raw: Any, what: str) -> Message:
        """Return one answer that stands in a column of its own."""
        return {"role": "assistant", "content": text_of(raw, what)}
