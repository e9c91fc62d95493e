"""The files of a tokenizer, carried from one model directory to another."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from gym_core import GymError

BESIDE = (
    "tokenizer*.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.*",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
)
FURTHER_TEMPLATES = "additional_chat_templates"  #: folder of chat templates with a name, such as `tool_use`


def copy_tokenizer(source: Path, into: Path) -> None:
    """Copy the files of the tokenizer, the chat templates and the stop tokens from one model directory to another.

    Raises GymError where there is no such directory any more: a model without its tokenizer would be of no use.
    """
    if not source.is_dir():
        raise GymError("the tokenizer is gone", where=str(source), fix="run the command again: it is made anew")
    copy_matching(source, into, (*BESIDE, f"{FURTHER_TEMPLATES}/*.jinja"))


def copy_matching(source: Path, into: Path, patterns: Sequence[str]) -> None:
    """Copy the files of a directory that match one of some patterns, in folders as they lie there."""
    for pattern in patterns:
        for file in sorted(source.glob(pattern)):
            target = into / file.relative_to(source)
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(file, target)


def remove_templates(folder: Path) -> None:
    """Remove the files of chat templates from a folder, for those of another tokenizer or another training."""
    for file in folder.glob("chat_template.*"):
        file.unlink()
    shutil.rmtree(folder / FURTHER_TEMPLATES, ignore_errors=True)
