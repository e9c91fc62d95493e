"""Longer texts than a model was trained on: how its rotary positions are scaled, written into its configuration.

What is written is what transformers reads, so whatever loads the result later scales alike.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from gym_core import GymError, Recipe
from gym_data.kinds import Data, DataAlgorithm
from gym_torch.config import RopeScaling, RopeType
from gym_torch.kinds import part
from gym_torch.model.miniature import by_length

KEY = "model.rope_scaling"
WRITTEN = ("rope_parameters", "max_position_embeddings")  #: what a scaling changes in a configuration

#: What each way to scale is told beside its factor, given the positions of pretraining. Dynamic scaling counts from
#: `max_position_embeddings`, which therefore stays.
_MORE: dict[str, Callable[[int], dict[str, Any]]] = {
    "linear": lambda window: {},
    "dynamic": lambda window: {},
    "yarn": lambda window: {"original_max_position_embeddings": window},
    "llama3": lambda window: {
        "original_max_position_embeddings": window,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
}


def longest(recipe: Recipe) -> int | None:
    """Return the tokens of the longest sample that a run can have, where that is known: of the data, and what is generated."""
    data = part(recipe, Data)
    read = data.longest() if data else None
    algorithm = part(recipe, DataAlgorithm) if read is not None else None
    return read + algorithm.generated() if read is not None and algorithm else None


def scale(shape: PretrainedConfig, asked: RopeScaling | RopeType, samples: int | None) -> None:
    """Write a scaling into the configuration of a model, in place; `samples` are the tokens of the longest sample.

    Raises GymError where the model has no rotary positions, several kinds of them or scaled ones, and where no factor is
    given and samples fit the model as it is.
    """
    scaling = asked if isinstance(asked, RopeScaling) else RopeScaling(type=asked)
    options = shape.get_text_config()
    own = options.to_dict().get("rope_parameters") or {}
    if own.get("rope_type") != "default":
        found = (
            f"scales its positions already: {own['rope_type']}"
            if "rope_type" in own
            else "has no rotary positions to scale"
        )
        raise GymError(f"this {options.model_type} model {found}", key=KEY, fix="leave it out")
    window = scaling.window or options.max_position_embeddings
    factor = scaling.factor or float(ceil((samples or 0) / window))
    if factor <= 1:
        raise GymError(
            f"samples fit the {window:,} positions that the model has" if samples else "how far to scale is not known",
            key=KEY,
            fix=f"set `rope_scaling: {{type: {scaling.type}, factor: 2}}`, a larger data.cutoff, or leave it out",
        )
    options.rope_parameters = own | {"rope_type": scaling.type, "factor": factor, **_MORE[scaling.type](window)}
    options.max_position_embeddings = window if scaling.type == "dynamic" else round(window * factor)


def refuse_files(model: PreTrainedModel, path: Path) -> None:
    """Raise GymError where a model scales its positions and the files under `path`, from which something else answers, do not."""
    raw = PretrainedConfig.get_config_dict(path)[0]
    filed = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    own = model.config.get_text_config().to_dict().get("rope_parameters") or {}
    if own.get("rope_type", "default") != filed.get("rope_type", filed.get("type", "default")):
        raise GymError(
            "what answers reads the files of the model, whose positions are not scaled",
            where=str(path),
            key=KEY,
            fix="set `rollouts: local`, or write the scaling into a copy of that config.json and leave the key out",
        )


def written(model: PreTrainedModel) -> dict[str, Any]:
    """Return what `scale` wrote into the configuration of a model, as plain data."""
    options = model.config.get_text_config().to_dict()
    return {key: options[key] for key in WRITTEN}


def steady(model: PreTrainedModel) -> None:
    """Have dynamic positions follow from each batch alone, and refuse a batch where those of a sample would follow from another.

    Frequencies that look at the length of a text are those of the longest text of a batch, and transformers keeps the dynamic
    ones, so that a sample would depend on those before it.
    """
    options = model.config.get_text_config().to_dict()
    if not by_length(options):
        return
    rope = options["rope_parameters"]
    dynamic = rope.get("rope_type") == "dynamic"
    window = (options if dynamic else rope).get(
        "max_position_embeddings" if dynamic else "original_max_position_embeddings"
    )
    if window is None:  # other positions for each kind of layer
        return

    def before(module: nn.Module, inputs: tuple[Any, ...], given: dict[str, Any]) -> None:
        positions = given["position_ids"] if "position_ids" in given else inputs[1]
        rows = len(given["x"] if "x" in given else inputs[0])  # of positions there may be one for all of them
        texts = int((positions[:, 1:] != positions[:, :-1] + 1).sum()) + rows
        if texts > 1 and int(positions.max()) >= window:
            raise GymError(
                f"a sample of more than {window:,} tokens would change the positions of those beside it",
                key="data.cutoff",
                fix=f"set a data.cutoff above {window:,}: then such samples are computed one by one",
            )
        if dynamic:
            module.register_buffer("inv_freq", module.get_buffer("original_inv_freq"), persistent=False)
            vars(module)["max_seq_len_cached"] = window

    for module in model.modules():
        if "original_inv_freq" in dict(module.named_buffers(recurse=False)):
            module.register_forward_pre_hook(before, with_kwargs=True)
