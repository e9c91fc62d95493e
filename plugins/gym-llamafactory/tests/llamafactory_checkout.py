"""Imports from a checkout of LLaMA-Factory what makes ids and labels; what that imports besides is not needed for texts."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any


def processors(checkout: Path) -> tuple[Any, Any, Any, Any]:
    """Return the modules of templates, and of supervised, pairwise and pretraining samples."""
    root = checkout / "src" / "llamafactory"
    for name in ("llamafactory", "llamafactory.data", "llamafactory.extras", "llamafactory.data.processor"):
        module = ModuleType(name)
        module.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = module
    sys.modules["torchaudio"] = ModuleType("torchaudio")
    from llamafactory.data import template  # type: ignore[import-not-found]
    from llamafactory.data.processor import pairwise, pretrain, supervised  # type: ignore[import-not-found]

    return template, supervised, pairwise, pretrain
