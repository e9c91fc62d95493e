"""Weights of a whole model by the names that they have in it, which adapters, deltas and other files of the model use."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from gym_deltasoup.sources.tensor_slices import Stored, tensors_of
from gym_torch.model.adapted import skeleton

#: Masks and frequencies that older files hold beside the weights; a model that is loaded makes its own.
MADE = re.compile(r"\.(?:(?:attn|attention)\.(?:masked_)?bias|rotary_emb\.inv_freq)$")


def tensors_of_model(path: Path) -> dict[str, Stored]:
    """Return all weights in the files of a directory. Raises what `tensors_of` does."""
    return in_model(tensors_of(path), path)


def in_model(stored: Mapping[str, Stored], path: Path) -> dict[str, Stored]:
    """Return weights of a model as transformers reads them; its configuration lies in a directory.

    Files of a model without its head, as those of GPT-2 on the Hub, have names without `transformer.`.
    """
    told = json.loads((path / "config.json").read_text(encoding="utf-8"))
    if told.get("model_type") not in CONFIG_MAPPING:
        return dict(stored)
    config = CONFIG_MAPPING[told["model_type"]]
    if config not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return dict(stored)
    model = MODEL_FOR_CAUSAL_LM_MAPPING[config]
    prefix = f"{model.base_model_prefix}."
    bare = not any(name.startswith(prefix) for name in stored)
    if not bare and not any(MADE.search(name) for name in stored):
        return dict(stored)
    names = skeleton(config.from_dict(told), model).state_dict()
    whole = {name.removeprefix(prefix): name for name in names} if bare else {}
    found = {whole.get(name, name): each for name, each in stored.items()}
    return {name: each for name, each in found.items() if name in names or not MADE.search(name)}
