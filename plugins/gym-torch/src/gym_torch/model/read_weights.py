"""Reads weights in safetensors into models of transformers, and says what does not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor
from transformers import PreTrainedModel

from gym_core import GymError
from gym_torch.console import say
from gym_torch.kernels.library_settings import keep_few_products
from gym_torch.kinds import LoadTimeQuantizer
from gym_torch.model.auto_class import AutoLanguageModel
from gym_torch.model.transformers_lock import TRANSFORMERS_LOCK, quiet
from gym_torch.quantization.loading import PreQuantized, QuantizeOnLoad, codec_of
from gym_torch.quantization.stored_formats import format_of, renamed

#: Parts of names of weights that text does not go through: other senses, drafts of further tokens, tables that follow from
#: the configuration.
_OTHER_MODALITIES = frozenset(
    {"visual", "vision_tower", "vision_model", "audio_tower", "multi_modal_projector", "mtp", "inv_freq", "masked_bias"}
)


@contextmanager
def said(path: Path, what: str = "loaded") -> Iterator[None]:
    """Say what transformers could not load, or build; files that are damaged or of another kind can raise whatever there is."""
    try:
        yield
    except GymError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0][:300]
        kind = (
            ""
            if isinstance(error, OSError | ValueError | ImportError | SafetensorError)
            else f"{type(error).__name__}: "
        )
        raise GymError(f"the model cannot be {what}: {kind}{reason}", where=str(path), key="model") from error


def read_weights(
    path: Path,
    options: dict[str, Any],
    kind: Any = AutoLanguageModel,
    finite: Callable[[Tensor], bool] = lambda held: bool(held.isfinite().all()),
    *,
    unused: Sequence[str] = (),
) -> PreTrainedModel:
    """Load weights quietly into a model of a kind.

    Raises GymError for any that are missing, do not fit, are not `finite`, or that the model has no place for; what belongs to
    parts that no text goes through is left out, and said, as is what has a name that ends in one of `unused`.
    """
    keep_few_products()  # for whoever opens a model without a run, as servers do
    report: dict[str, Any]
    with TRANSFORMERS_LOCK, quiet():
        model, report = kind.from_pretrained(
            path, use_safetensors=True, output_loading_info=True, ignore_mismatched_sizes=True, **options
        )
    left = sorted(report["unexpected_keys"])
    others = [name for name in left if any(part in _OTHER_MODALITIES for part in name.split("."))]
    if others:
        say(f"{len(others)} weights are not loaded, which text does not need: {', '.join(others[:3])}")
    scales = [name for name in left if name.rpartition(".")[2] in unused]
    if scales:
        say(f"{len(scales)} scales of inputs are not used, which keep their precision: {', '.join(scales[:3])}")
    wrong = {
        "weights that config.json has no place for": [name for name in left if name not in {*others, *scales}],
        "missing weights": sorted(report["missing_keys"]),
        "weights of another shape than config.json says": sorted(key for key, *_ in report["mismatched_keys"]),
        "weights that are not finite": [key for key, held in model.named_parameters() if not finite(held)],
    }
    for what, names in wrong.items():
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise GymError(f"{what}: {', '.join(names[:3])}{more}", where=str(path), key="model.path")
    return model


def read_model(path: Path, options: dict[str, Any], quantizer: LoadTimeQuantizer | None, *how: Any) -> PreTrainedModel:
    """Load weights as `read_weights` does; those of linear layers are encoded one after another, or are stored as they come.

    Raises what `read_weights` and `codec_of` raise.
    """
    shape = options["config"]
    unused: Sequence[str] = ()
    if quantizer:
        skipped, senses = quantizer.modules_to_not_convert, quantizer.convert_vision_tower
        streaming = QuantizeOnLoad(codec_of(quantizer, shape), path, skipped, senses)
    elif found := format_of(shape):
        streaming, unused = PreQuantized(found, path), found.unused
        options = {**options, "key_mapping": renamed(path, found)}
    else:
        return read_weights(path, options, *how)
    model = read_weights(path, {**options, "quantization_config": streaming}, *how, unused=unused)
    streaming.finish(model)
    return model
