"""Makes texts of rows that hold an instruction and its answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gym_axolotl.instruct import Instruct
from gym_data.formats.parsing import UntrainableRowError, text_of
from gym_data.rows import Segmented

_PLACE = re.compile(r"\{\{|\}\}|\{(\w+)\}")


class InstructReader:
    """Makes a prompt and an answer of a row."""

    def __init__(self, config: Instruct) -> None:
        """Hold the columns and formats."""
        self.config = config

    def convert(self, row: Mapping[str, Any]) -> Segmented:
        """Return the prompt, and the answer, which is learnt. Raises ValueError where a text is missing."""
        config = self.config
        instruction = text_of(row.get(config.instruction), f"column `{config.instruction}`")
        answer = text_of(row.get(config.output), f"column `{config.output}`")
        if not answer:
            raise UntrainableRowError("the answer is empty")
        further, alone = self._optional(row, config.input), config.no_input_system_prompt
        usual = config.system_prompt if further or alone is None else alone
        system = self._optional(row, config.system) or usual
        prompt = written(config.system_format, system=system) if system else ""
        form = config.format if further else config.no_input_format
        prompt += written(form, instruction=instruction, input=further)
        parts = [(prompt, False), (config.answer_prefix + answer, True)]
        ended = [(config.end, True)] if config.end else []
        return Segmented(tuple(part for part in [*parts, *ended] if part[0]), begun=True, ended=not ended)

    @staticmethod
    def _optional(row: Mapping[str, Any], column: str | None) -> str:
        value = row.get(column) if column else None
        return "" if value is None else text_of(value, f"column `{column}`")


def written(form: str, **texts: str) -> str:
    """Return a format with the texts in the places that it names; a place of another name stays as it is."""

    def put(match: re.Match[str]) -> str:
        return match[0][0] if match[1] is None else texts.get(match[1], match[0])

    return _PLACE.sub(put, form)
