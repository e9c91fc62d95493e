"""A model without data in its weights, as a run would load it, for plans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, PretrainedConfig

from gym_torch.attention.segment_attention import NAME
from gym_torch.config import Transformers
from gym_torch.kernels import precision_probe
from gym_torch.model import fp8_products
from gym_torch.model.auto_class import AutoLanguageModel
from gym_torch.model.layout_support import miniature_support
from gym_torch.model.loading import LoadedModel
from gym_torch.model.read_weights import said
from gym_torch.model.transformers_lock import TRANSFORMERS_LOCK
from gym_torch.model.vocabulary import MULTIPLE, resize, tokens_in
from gym_torch.packing import PACKED
from gym_torch.quantization.loading import put_empty_layers
from gym_torch.quantization.stored_formats import format_of, prepare
from gym_torch.rounding import DTYPES


def empty(config: Transformers, precision: str, samples: int | None, device: torch.device) -> LoadedModel:
    """Build a model from its `config.json` on the meta device, with the dtypes and the layout that it would have on `device`.

    `precision` is that of the recipe, `samples` are the tokens of the longest sample where that is known. Raises GymError where
    transformers cannot build it.
    """
    path = config.folder(weights=False)
    options: dict[str, Any] = {"trust_remote_code": config.trust_remote_code}
    if precision == "auto":
        precision = _precision(config, path)
    with said(path, "built"):
        shape = AutoConfig.from_pretrained(path, local_files_only=True, **options)
        # The kernel of an accelerator is compiled, which fake tensors cannot be: fused attention keeps the same tensors.
        packs = config.attention == "auto" and device.type == "cpu"
        if config.attention != "auto":
            options["attn_implementation"] = config.attention
        options["dtype"] = _dtype(config, shape, precision)
        stored = format_of(shape)
        with TRANSFORMERS_LOCK, torch.device("meta"), NoDrawing():
            model = AutoLanguageModel.from_config(shape, **options)
            if (
                config.resizes_vocabulary()
                and (tokens := tokens_in(path)) > model.get_input_embeddings().weight.shape[0]
            ):
                resize(model, tokens, MULTIPLE)
        if config.quantization:
            put_empty_layers(model, config.quantization)
        elif stored and config.init == "pretrained":
            prepare(model, path, stored)
        layout = miniature_support(model, samples, packs).layout
        if layout is PACKED:
            model.set_attn_implementation(NAME)
        fp8_products.use(model, config.fp8)
    return LoadedModel(model, path, config.path, precision, layout, quantization=config.quantization)


class NoDrawing(TorchFunctionMode):
    """Leaves out the drawing of first values, which would be half of the time it takes to build a model."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return the tensor as it is in place of initializing it."""
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


def _precision(config: Transformers, path: Path) -> str:
    """Return what `auto` becomes, as loading the model chooses it."""
    if config.dtype in ("bf16", "fp16"):
        return config.dtype
    with said(path):
        shape = AutoConfig.from_pretrained(path, trust_remote_code=config.trust_remote_code, local_files_only=True)
    return precision_probe.trial(shape.get_text_config().hidden_size).precision


def _dtype(config: Transformers, shape: PretrainedConfig, precision: str) -> torch.dtype:
    """Return the dtype that frozen weights will have."""
    stored = getattr(shape.get_text_config(), "dtype", None) or torch.float32
    if config.init != "pretrained" or precision == "fp32":
        return torch.float32
    return stored if config.dtype == "auto" else DTYPES[config.dtype]
