"""How the base of adapters is quantized while it is loaded: keys that say it together."""

from __future__ import annotations

from typing import Any

from gym_dialect import Key
from gym_llamafactory.table import Keys

_OF = "transformers"
_BITSANDBYTES = {4: "bnb_4bit", 8: "bnb_8bit"}
_HQQ = (1, 2, 3, 4, 5, 6, 8)
_QUANTO = {2: "int2", 4: "int4", 8: "int8"}
_STORED = ("gptq", "awq", "aqlm", "mxfp4", "fp8")  #: what checkpoints are quantized with, before anything is loaded


def quantizer(
    bits: Any,
    quantization_method: str | None = None,
    quantization_type: str | None = None,
    double_quantization: bool | None = None,
) -> dict[str, Any]:
    """Return the component that keys mean together. Raises ValueError where the method has no such bits or options."""
    method, bits = str(quantization_method or "bnb").lower(), int(bits)
    if method in _STORED:
        raise ValueError(
            f"`quantization_method: {method}` is of models that are quantized already: name one without this key"
        )
    known = {"bnb": _BITSANDBYTES, "hqq": _HQQ, "quanto": _QUANTO, "eetq": (8,)}
    if method not in known:
        raise ValueError(f"no method `{method}`; there are {', '.join(known)}")
    if bits not in known[method]:
        able = [f"`quantization_method: {name}`" for name, has in known.items() if bits in has]
        what = f"{method} has {', '.join(map(str, known[method]))} bits, not {bits}"
        raise ValueError(what + (f"; {' and '.join(able)} can" if able else ""))
    if method == "bnb" and bits == 4:
        kind, twice = quantization_type or "nf4", True if double_quantization is None else double_quantization
        return {"name": "bnb_4bit", "quant_type": kind, "double_quant": twice}
    if method == "bnb":
        return {"name": "bnb_8bit"}
    if method == "hqq":
        return {"name": "hqq", "bits": bits}
    return {"name": "quanto", "weights": _QUANTO[bits]} if method == "quanto" else {"name": "eetq"}


class QuantizationKeys(Keys):
    """Keys of quantization while a model is loaded."""

    keys = (
        Key(
            "quantization_bit",
            "model.quantization",
            _OF,
            quantizer,
            together="quantization_method quantization_type double_quantization",
        ),
        Key("ref_model_quantization_bit", "model.ref_model_quantization", _OF, quantizer),
    )
