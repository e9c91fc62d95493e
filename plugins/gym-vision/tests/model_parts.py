"""The parts of a model of images and text, by the names of weights and by the options that have them train."""

from __future__ import annotations

import torch

from gym_core.loading import load_component
from gym_torch.model.auto_class import AutoLanguageModel

ALL = {"freeze_vision_tower": False, "freeze_multi_modal_projector": False}
TOWER = {"freeze_vision_tower": False, "freeze_language_model": True}
PROJECTOR = {"freeze_multi_modal_projector": False, "freeze_language_model": True}
#: What projectors are called in transformers.
PROJECTORS = ("visual.merger.", "multi_modal_projector.", "embed_vision.")


def part(name):
    """Return the part that a weight is of, by its name."""
    if any(each in name for each in PROJECTORS):
        return "projector"
    return "language" if "language_model" in name or "lm_head" in name else "tower"


def adapted(family, model, name="full", **options):
    """Return a small model in which an adapter chose what trains, in training."""
    made = load_component("adapters", name)[1](**options)
    found = made.build(model=AutoLanguageModel.from_pretrained(model(family), dtype=torch.float32), seed=0)
    found.model.train()
    return found
