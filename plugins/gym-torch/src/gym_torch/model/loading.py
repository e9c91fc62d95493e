"""Loads a causal language model through transformers: safetensors alone, no foreign code without consent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel

from gym_core import GymError, PluginError, Run
from gym_data.kinds import Data
from gym_optim.promises import named, promised
from gym_torch.console import say
from gym_torch.kernels import precision_probe
from gym_torch.kinds import Adapter, LoadTimeQuantizer, part
from gym_torch.memory.memory_meter import Meter
from gym_torch.model import fp8_products, layer_norms, rope_scaling
from gym_torch.model.auto_class import AutoLanguageModel
from gym_torch.model.layout_support import LayoutSupport, layout_support_of
from gym_torch.model.read_weights import read_model, said
from gym_torch.model.transformers_lock import TRANSFORMERS_LOCK
from gym_torch.model.vocabulary import check_vocabulary
from gym_torch.model_files import PATH, check_code, check_weights
from gym_torch.packing import ALONE, ORDER, PACKED, PADDED, Layout
from gym_torch.quantization.loading import codec_of, quantize_in_place
from gym_torch.quantization.quantizable_weights import tell
from gym_torch.rounding import DTYPES

if TYPE_CHECKING:
    from gym_torch.config import Transformers


PRECISIONS = tuple(DTYPES)  #: what a run may compute in


@dataclass(frozen=True)
class LoadedModel:
    """A model in memory and where it came from."""

    model: PreTrainedModel
    path: Path  #: local directory with its configuration and tokenizer
    name: str  #: as the recipe calls it
    precision: str = "fp32"  #: what the run computes in: `fp32`, `bf16` or `fp16`
    layout: Layout = PADDED  #: how samples become batches that this model computes exactly
    compile: bool | str = False  #: whether to compile its layers: true, false or `auto`
    neftune_noise_alpha: float = 0.0  #: alpha of the noise on its embeddings in training
    router_aux_loss_coef: float | Literal["own"] | None = (
        None  #: of the load-balancing loss; None: as its configuration says
    )
    grown: bool = False  #: whether embeddings may be added, which only some adapters hold
    described: Mapping[str, Any] = field(default_factory=dict)
    """What an adapter must say of it, to be opened on it again."""
    quantization: LoadTimeQuantizer | None = None  #: how its linear layers are stored
    own_folder: Path | None = None  #: the directory that was named, where tokens are added to its tokenizer in `path`


def check_loaded(found: object, by: object, key: str) -> LoadedModel:
    """Return what a backend built. Raises PluginError where it is no LoadedModel, or one whose parts are not what it says."""
    loaded = promised(found, LoadedModel, by, key)
    who = by if isinstance(by, str) else f"{named(by)}.build"
    parts: tuple[tuple[str, type], ...] = (
        ("model", PreTrainedModel),
        ("path", Path),
        ("name", str),
        ("layout", Layout),
    )
    for part_of, wanted in parts:
        promised(getattr(loaded, part_of), wanted, f"{who}, as `{part_of}` of its LoadedModel,", key)
    if loaded.precision not in PRECISIONS:
        raise PluginError(
            f"{who} returned a LoadedModel with the precision {loaded.precision!r}",
            key=key,
            fix=f"let it say what the run computes in: {' or '.join(PRECISIONS)}",
        )
    return loaded


def load(config: Transformers, run: Run) -> LoadedModel:
    """Load the model that the recipe names, on the CPU.

    Raises GymError where there are no weights in safetensors, where they do not fit the configuration, or where the
    model wants to run code of its own and the recipe does not allow it.
    """
    fp8_products.check(config.fp8)
    run.notes["meter"] = Meter(precision_probe.device())
    path, shape = _located(config, rope_scaling.longest(run.recipe))
    width = shape.get_text_config().hidden_size
    precision = run.ranks.agree(lambda: _precision(run, width, config.dtype))
    fp8_products.check_precision(config.fp8, precision)
    adapter = part(run.recipe, Adapter)
    grows = adapter is not None and adapter.adds_embeddings
    model = _weights(config, path, shape, precision, run.recipe.train.seed, grows)
    if stored := tell(model, config.path):
        run.record.update(quantized_weights=stored)
    data = part(run.recipe, Data)
    if data is not None and data.brings_inputs():
        if not AutoLanguageModel.reads_media(shape):
            raise GymError(f"{type(model).__name__} takes text alone", key=PATH, fix="name a model of images and text")
        found = LayoutSupport(ALONE, "they may have images, videos or sounds")
    else:
        found = layout_support_of(model, rope_scaling.longest(run.recipe), packs=config.attention == "auto")
    fp8_products.use(model, config.fp8)
    if found.layout is PADDED:
        say(f"samples are padded, not packed: {found.why}")
    elif found.layout is ALONE:
        say(f"samples are computed one by one, neither packed nor padded: {found.why}")
    options = (config.compile, config.neftune_noise_alpha, config.router_aux_loss_coef)
    described: dict[str, Any] = {}
    if config.rope_scaling is not None:  # a whole model has a configuration of its own
        described["config"] = rope_scaling.written(model)
    if config.revision:
        described["revision"] = config.revision
    return LoadedModel(
        model,
        path,
        config.path,
        precision,
        found.layout,
        *options,
        grown=config.resizes_vocabulary(),
        own_folder=config.own_folder(),
        described=described,
        quantization=config.quantization,
    )


def load_frozen(
    config: Transformers, precision: str, layout: Layout, seed: int = 0, samples: int | None = None, key: str = PATH
) -> LoadedModel:
    """Load a further model, frozen, beside the one that is trained: for the same batches, and as it was before any training.

    `precision` is what the run computes in, `layout` that of its batches, `seed` that of its random weights, `samples` are the
    tokens of the longest sample where that is known, `key` is the key of the recipe that names it. Raises what `load` raises, and
    GymError where the model cannot compute batches of that layout.
    """
    path, shape = _located(config, samples, key)
    model = _weights(config, path, shape, precision, seed).requires_grad_(False).eval()
    tell(model, f"{key.rpartition('.')[2]} {config.path}")
    own = layout_support_of(model, samples, packs=layout is PACKED).layout
    fp8_products.use(model, config.fp8)
    if ORDER.index(own) > ORDER.index(layout):
        raise GymError(
            f"{type(model).__name__} computes samples {own.name}, and the model that is trained computes them {layout.name}",
            where=config.path,
            key=key,
            fix="set `model: {attention: sdpa}`: then samples are padded for both"
            if own is PADDED
            else "name another model",
        )
    return LoadedModel(model, path, config.path, precision, layout, quantization=config.quantization)


def _located(config: Transformers, samples: int | None, key: str = PATH) -> tuple[Path, PretrainedConfig]:
    """Return where a model lies, checked, and what its `config.json` says, with its positions scaled as asked."""
    pretrained = config.init == "pretrained"
    path = config.folder(pretrained, key)
    check_code(path, config.trust_remote_code)
    if pretrained:
        check_weights(path, key)
    with said(path):
        shape = AutoConfig.from_pretrained(path, trust_remote_code=config.trust_remote_code, local_files_only=True)
    if config.rope_scaling is not None:
        rope_scaling.scale(shape, config.rope_scaling, samples)
    return path, shape


def _weights(
    config: Transformers, path: Path, shape: PretrainedConfig, precision: str, seed: int, grows: bool = False
) -> PreTrainedModel:
    """Load the weights, or draw them; embeddings may be missing where the model `grows` later."""
    options: dict[str, Any] = {"trust_remote_code": config.trust_remote_code, "local_files_only": True}
    if config.attention != "auto":
        options["attn_implementation"] = config.attention
    pretrained = config.init == "pretrained"
    with said(path):
        options["dtype"] = _dtype(config.dtype, precision) if pretrained else torch.float32
        if pretrained:
            model = read_model(path, {"config": shape, **options}, config.quantization)
        else:
            codec = codec_of(config.quantization, shape) if config.quantization else None
            model = _random(shape, seed, options)
            if codec and config.quantization:
                quantize_in_place(model, codec, config.quantization)
    if config.resizes_vocabulary() or not grows:
        check_vocabulary(model, path, config.own_folder(), config.resizes_vocabulary(), seed)
    rope_scaling.steady(model)
    layer_norms.take_any_precision(model)
    return model


def _random(shape: Any, seed: int, options: dict[str, Any]) -> PreTrainedModel:
    with TRANSFORMERS_LOCK, torch.random.fork_rng():
        torch.manual_seed(seed)
        options.pop("local_files_only")
        return AutoLanguageModel.from_config(shape, **options)


def _dtype(asked: str, precision: str) -> torch.dtype | str:
    """Return the dtype of frozen weights; what is trained becomes fp32 later in any case."""
    if asked == "auto":
        return torch.float32 if precision == "fp32" else "auto"
    if asked != "fp32" and precision == "fp32":
        raise GymError(
            f"weights in {asked} cannot be computed with in fp32",
            key="model.dtype",
            fix=f"set `train: {{precision: {asked}}}`",
        )
    return DTYPES[asked]


def _precision(run: Run, width: int, dtype: str) -> str:
    """Return `fp32`, `bf16` or `fp16`; a resumed run keeps what it began with."""
    asked = run.recipe.train.precision
    before = run.record.read().get("precision") if run.resuming else None
    if before or asked != "auto" or dtype in ("bf16", "fp16"):
        chosen = str(before or (asked if asked != "auto" else dtype))
        say(f"precision: {chosen}")
    else:
        found = precision_probe.trial(width)
        chosen = found.precision
        say(f"precision: {found}")
    run.record.update(precision=chosen)
    return chosen
