"""Laws of quantizers that work on an artifact: what they declare is what is measured, and the base stays as it was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from gym_core import Artifact, Quantizer
from gym_testkit import weights
from gym_testkit.bench import Bench, fingerprint, weight_bytes
from gym_testkit.distribution import Brought
from gym_testkit.law import laws_of

#: Linear layers of a Qwen3, under names that a quantizer by name looks for.
MATRIX = "model.layers.0.mlp.up_proj.weight"
OTHER = "model.layers.0.mlp.down_proj.weight"
ODD = {MATRIX: (131, 67), OTHER: (7, 3), "model.layers.0.self_attn.q_proj.weight": (1, 1), "model.norm.weight": (33,)}

laws = laws_of("quantizers", "quantizer")


def _of_artifacts(brought: Brought) -> bool:
    return cast(type[Quantizer], brought.cls).moment == "artifact"


def _promises_error(brought: Brought) -> bool:
    return _of_artifacts(brought) and cast(type[Quantizer], brought.cls).error_bound is not None


@laws("declared size is the size of the files within 2 %", _of_artifacts)
def declared_size(brought: Brought, bench: Bench) -> None:
    """Two matrices of 200 thousand numbers and a norm."""
    shapes = {MATRIX: (512, 384), OTHER: (384, 512), "model.norm.weight": (384,)}
    quantized = _quantized(brought, bench, {name: weights.normal(shape, 1) for name, shape in shapes.items()})[1]
    declared, measured = cast(Quantizer, brought.sample()).declared_bytes(shapes), weight_bytes(quantized.path)
    assert abs(declared - measured) <= 0.02 * measured, f"declares {declared} bytes, and the files have {measured}"


@laws("the error is within the declared bound", _promises_error)
def error_bound(brought: Brought, bench: Bench) -> None:
    """Relative Frobenius error on a standard normal matrix."""
    before = {MATRIX: weights.normal((256, 192), 2)}
    quantizer, quantized = _quantized(brought, bench, before)
    error = weights.distance(before, _restored(quantizer, quantized)) / weights.size(before)
    bound = cast(float, cast(type[Quantizer], brought.cls).error_bound)
    assert error <= bound, f"relative error {error:.4g}, declared at most {bound:.4g}"


@laws("odd shapes keep their shape, and zeros stay zeros", _of_artifacts)
def odd_shapes(brought: Brought, bench: Bench) -> None:
    """Sizes that no group or block divides, a single number, a vector, and a matrix of zeros."""
    before = {name: weights.normal(shape, 3) for name, shape in ODD.items()}
    before[OTHER] = weights.constant(ODD[OTHER], 0.0)
    after = _restored(*_quantized(brought, bench, before))
    assert {name: tensor.shape for name, tensor in after.items()} == ODD
    assert all(value == value for tensor in after.values() for value in tensor.values), "not a number appeared"
    assert weights.norm(after[OTHER].values) == 0.0, "zeros became something else"


@laws("the base is untouched", _of_artifacts)
def base_untouched(brought: Brought, bench: Bench) -> None:
    """Not one byte of the artifact that is quantized changes, and the result stands elsewhere."""
    base = bench.model()
    before = fingerprint(base)
    quantized = brought.sample().build().quantize(Artifact(base), bench.path("quantized"))
    assert fingerprint(base) == before
    assert base not in [quantized.path, *quantized.path.parents]


@laws("the same weights give the same files", _of_artifacts)
def deterministic(brought: Brought, bench: Bench) -> None:
    """Two runs agree byte for byte."""
    first, second = (brought.sample().build().quantize(Artifact(bench.model()), bench.path(name)) for name in "ab")
    assert fingerprint(first.path, ".safetensors") == fingerprint(second.path, ".safetensors")


def _quantized(brought: Brought, bench: Bench, tensors: Mapping[str, weights.Tensor]) -> tuple[Any, Artifact]:
    base = bench.model_with(tensors)
    quantizer = brought.sample().build()
    return quantizer, quantizer.quantize(Artifact(base), bench.path("quantized"))


def _restored(quantizer: Any, quantized: Artifact) -> dict[str, weights.Tensor]:
    return {name: weights.from_array(array) for name, array in quantizer.restore(quantized).items()}
