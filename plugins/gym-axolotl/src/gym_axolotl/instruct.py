"""Rows of an instruction and its answer, written as text of the format that a file of axolotl names. Nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from gym_data.kinds import Format

WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further context. "
    "Write a response that appropriately completes the request."
)
ALONE = "Below is an instruction that describes a task. Write a response that appropriately completes the request."


class Instruct(Format):
    """An instruction, perhaps with an input, and its answer, as plain text without a chat template.

    The prompt and the answer are encoded one after the other, between the tokens that begin and end a text; the answer is learnt.
    By default the text is that of Alpaca.
    """

    target: ClassVar[str] = "gym_axolotl.instruct_reader:InstructReader"
    example: ClassVar[Mapping[str, Any]] = {
        "instruction": "Name the capital.",
        "input": "France",
        "output": "It is Paris.",
    }

    instruction: str = "instruction"
    """Column of the instruction."""
    input: str | None = "input"
    """Column of further input, which a row may lack."""
    output: str = "output"
    """Column of the answer."""
    system: str | None = None
    """Column of the system message, which a row may lack."""
    format: str = "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n"
    """How a prompt with an input is written: `{instruction}` and `{input}` stand for the columns, `{{` for a brace."""
    no_input_format: str = "### Instruction:\n{instruction}\n\n### Response:\n"
    """How one without is."""
    system_format: str = "{system}\n\n"
    """How a system message before it is; none is written where there is no message."""
    system_prompt: str = WITH_INPUT
    """System message of rows that have none."""
    no_input_system_prompt: str | None = ALONE
    """The same for rows without an input; null: as those with one."""
    answer_prefix: str = ""
    """What is put before an answer and learnt with it."""
    end: str | None = None
    """Text of the special token that ends an answer; without it, the one that ends a text.

    Needs `data: {split_special_tokens: false}`."""
