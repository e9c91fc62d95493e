"""How the states of an embedding model become an embedding, from the files of sentence-transformers beside its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gym_core import GymError
from gym_torch.checkpoints.tokenizer_files import copy_matching

MODULES = "modules.json"
FILES = (MODULES, "config_sentence_transformers.json", "sentence_bert_config.json", "[0-9]_*/config.json")
KNOWN = {"lasttoken": "last_token", "mean": "mean", "mean_tokens": "mean"}
REST = ("Transformer", "Normalize")  #: modules besides pooling that change nothing here: vectors are of length 1


def pooling_of(folder: Path) -> str | None:
    """Return `last_token` or `mean`; None where the folder holds no embedding model.

    Raises GymError where embeddings are made in another way, or the files do not say how.
    """
    file = folder / MODULES
    if not file.is_file():
        return None
    try:
        found = {each["type"].rpartition(".")[2]: each["path"] for each in json.loads(file.read_text(encoding="utf-8"))}
        pooling = folder / found.pop("Pooling", "") / "config.json"
        told: dict[str, Any] = json.loads(pooling.read_text(encoding="utf-8"))
        modes = [name.removeprefix("pooling_mode_") for name, on in told.items() if "mode_" in name and on is True]
        modes += [told["pooling_mode"]] if "pooling_mode" in told else []
    except (ValueError, TypeError, KeyError, AttributeError, OSError) as error:
        why = f"does not say how embeddings are made: {str(error)[:120]}"
        raise GymError(why, where=str(file), fix="fetch the model again") from None
    others = [name for name in found if name not in REST]
    if others or len(modes) != 1 or modes[0] not in KNOWN:
        how = ", ".join([*others, *(f"{mode} pooling" for mode in modes)])
        raise GymError(
            f"makes embeddings with {how}, and here they are the last state or the mean of all",
            where=str(file),
            fix="use sentence-transformers for it",
        )
    return KNOWN[modes[0]]


def copy_pooling(source: Path, into: Path) -> None:
    """Copy the files from one model directory to another, where `source` holds an embedding model."""
    copy_matching(source, into, FILES)
