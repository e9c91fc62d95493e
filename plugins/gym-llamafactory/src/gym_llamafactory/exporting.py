"""A file of LLaMA-Factory for `export`, translated into what `gym export` writes: which model, with which adapter, and where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gym_core.discovery import nearest
from gym_core.errors import Problem
from gym_core.sections import Findings
from gym_data.location import locate
from gym_llamafactory.serving import VOCABULARY

DTYPES = {"auto": "keep", "float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
STATED: dict[str, tuple[Any, ...]] = {
    "trust_remote_code": (False, True),  # weights are read from safetensors, and no code of a model runs
    "export_device": ("cpu", "auto"),
    "export_legacy_format": (False,),
    "export_hub_model_id": (None,),
}
"""Values that change nothing here; others are refused."""
FIXES = {
    "export_hub_model_id": "leave it out, and upload the folder: `hf upload NAME FOLDER`",
}
UNREAD = {*VOCABULARY, "stage", "finetuning_type", "template", "cutoff_len", "flash_attn"}
"""Keys that say what the folders know by themselves; the chat template of the model, or of its adapter, goes with it."""
BITS = (8, 4, 3, 2)
GPTQ = {"name": "gptq", "group_size": 128, "sym": True, "desc_act": False, "damp_percent": 0.1}
"""What LLaMA-Factory quantizes by, with the options that it leaves to transformers."""


def translate(data: Mapping[str, Any], found: Findings) -> dict[str, Any]:
    """Return `model`, `adapter` (or None), `into` and the options of the `exporter`; with `recipe` where it is to be quantized.

    `located` gives the folder of a model that is named as in a recipe. Notes every key that nobody obeys here.
    """
    given = dict(data)
    told: dict[str, Any] = {"model": given.pop("model_name_or_path"), "into": given.pop("export_dir", None)}
    told["located"] = locate
    if not told["into"]:
        _add(found, "export_dir", "is missing", "name the folder to write")
    adapters = [part.strip() for part in str(given.pop("adapter_name_or_path", None) or "").split(",") if part.strip()]
    if len(adapters) > 1:
        _add(
            found,
            "adapter_name_or_path",
            "names several adapters",
            "merge one after another, or `gym merge` them first",
        )
    told["adapter"] = adapters[0] if adapters else None
    dtype = str(given.pop("infer_dtype", "auto"))
    if dtype not in DTYPES:
        _add(found, "infer_dtype", f"there is no `{dtype}`", f"one of: {', '.join(DTYPES)}")
    told["exporter"] = {
        "name": "safetensors",
        "shard_gigabytes": given.pop("export_size", 5),
        "dtype": DTYPES.get(dtype, "keep"),
    }
    recipe = _quantized(given, told, found)
    told |= {"recipe": recipe} if recipe else {}
    for key, value in given.items():
        if key in STATED:
            if value not in (None, *STATED[key]):
                _add(found, key, "is not supported", FIXES.get(key, f"set it to {STATED[key][0]}, or leave it out"))
        elif key not in UNREAD:
            near = nearest(
                key,
                {*STATED, *UNREAD, *CALIBRATION, "export_dir", "export_size", "infer_dtype", "adapter_name_or_path"},
            )
            _add(found, key, "is no key of a file for `export`", f"did you mean `{near}`?" if near else "leave it out")
    return told


CALIBRATION = {
    "export_quantization_bit": None,
    "export_quantization_dataset": None,
    "export_quantization_nsamples": 128,
    "export_quantization_maxlen": 1024,
}
"""Keys of quantization, with what they mean by being left out."""


def _quantized(given: dict[str, Any], told: Mapping[str, Any], found: Findings) -> dict[str, Any] | None:
    """Take the keys of quantization; return the recipe that it is done by, None where none is asked for."""
    said = {key: given.pop(key, None) for key in CALIBRATION}
    bits, dataset, samples, length = (said[key] if said[key] is not None else CALIBRATION[key] for key in CALIBRATION)
    if bits is None:
        return None
    if bits not in BITS:
        _add(
            found,
            "export_quantization_bit",
            f"there are no weights of {bits} bits",
            f"one of: {', '.join(map(str, BITS))}",
        )
    if not dataset:
        _add(found, "export_quantization_dataset", "is missing, and GPTQ measures on texts", "name a file of texts")
    return {
        "model": told["model"],
        "data": {"sources": [str(dataset)], "cutoff": length},
        "algorithm": "pretrain",
        "quantization": {**GPTQ, "bits": bits, "calibration_samples": samples, "calibration_length": length},
        "output": str(told["into"]),
    }


def _add(found: Findings, key: str, why: str, fix: str) -> None:
    found.problems.append(Problem(why, found.where((key,)), key, fix))
