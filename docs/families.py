"""Write docs/families.md: every family of transformers, how it is computed, and whether its loss is that of plain transformers.

Run it with the Python of the workshop: `python docs/families.py`, or with the names of some. It builds each family small and
takes minutes for all; the tests hold the page to what they find.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import torch
from transformers.utils import logging

from gym_adapters import LoRA
from gym_core import GymError
from gym_testkit import families

PAGE = Path(__file__).with_name("families.md")
HEAD = """# Families

Causal language models that transformers knows, each built small from its configuration with random weights; windows, chunks and
contexts are shorter than the samples. *Layout* is what a run chooses, see [packing](packing.md). *Loss* says whether the loss of
every sample, those with a shared prompt among them, is what plain transformers computes for it alone. *LoRA* are the layers that
`adapter: lora` finds. Written by `docs/families.py`; `test_families.py` holds it, and runs every family in `nox -s proofs`.

| Family | Layout | Why not packed | Loss | LoRA |
|---|---|---|---|---|
"""


def row(name: str) -> str:
    """Return the line of a family."""
    found = families.trial(name)
    if found.found is None:
        return f"| {name} | not run | {cell(found.why)} | | |"
    agrees = "agrees" if found.error < families.AGREES else f"off by {found.error:.1g}"
    why = cell(found.found.why)
    return f"| {name} | {found.found.layout.name} | {why} | {agrees} | {targets(name)} |"


def targets(name: str) -> str:
    """Return the last names of the layers that LoRA adapts."""
    try:
        adapted = LoRA(rank=2).build(model=families.build(name), seed=0)
    except (GymError, ValueError) as error:
        return cell(str(error))
    paths = [path for path, _ in adapted.model.named_modules() if path.endswith(".lora_A")]
    return ", ".join(sorted({path.split(".")[-2] for path in paths}))


def cell(text: str) -> str:
    """Return text that stands in one cell of a table."""
    return " ".join(text.split()).replace("|", "/")[:160]


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    names = sys.argv[1:] or families.names()
    lines = [row(name) for name in names]
    if names == families.names():
        lines += [f"| {name} | left out | {why} | | |" for name, why in families.LEFT_OUT.items()]
    PAGE.write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")
