"""The files of a tokenizer, carried from one model directory to another."""

from __future__ import annotations

import shutil
from pathlib import Path

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
)


def copy_tokenizer(source: Path, into: Path) -> None:
    """Copy the files of the tokenizer, the chat template and the stop tokens from one model directory to another."""
    for pattern in BESIDE:
        for file in sorted(source.glob(pattern)):
            shutil.copyfile(file, into / file.name)
