"""Laws of quantizers that work on an artifact: what they declare is what is measured, and the base stays as it was."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from gym_core import Artifact, Quantizer
from gym_testkit import weights
from gym_testkit.bench import Bench, fingerprint, weight_bytes
from gym_testkit.distribution import Brought
from gym_testkit.law import laws_of

WIDE = (192, 384)  #: sizes of states and feed-forward layers: 530 thousand numbers
ODD = (37, 67)  #: no group or block divides them
ZEROS = "model.layers.0.mlp.down_proj.weight"

laws = laws_of("quantizers", "quantizer")


def _of_artifacts(brought: Brought) -> bool:
    return cast(type[Quantizer], brought.cls).moment == "artifact"


def _promises_error(brought: Brought) -> bool:
    return _of_artifacts(brought) and cast(Quantizer, brought.sample()).error_bound() is not None


@laws("declared size is the size of the files within 2 %", _of_artifacts)
def declared_size(brought: Brought, bench: Bench) -> None:
    """Of a model of 530 thousand numbers: what is stored counts, not what it stands for."""
    base = bench.model_of(*WIDE)
    shapes = {name: tensor.shape for name, tensor in weights.read(base).items()}
    measured = weight_bytes(_quantized(brought, bench, base)[1].path)
    declared = cast(Quantizer, brought.sample()).declared_bytes(shapes)
    assert abs(declared - measured) <= 0.02 * measured, f"declares {declared} bytes, and the files have {measured}"


@laws("the error is within the declared bound", _promises_error)
def error_bound(brought: Brought, bench: Bench) -> None:
    """Relative Frobenius error of each matrix of normal numbers."""
    base = bench.model_of(*WIDE)
    before, after = weights.read(base), _restored(*_quantized(brought, bench, base))
    bound = cast(float, cast(Quantizer, brought.sample()).error_bound())
    for name in [name for name, tensor in before.items() if len(tensor.shape) == 2]:
        error = weights.distance({"": before[name]}, {"": after[name]}) / weights.size({"": before[name]})
        assert error <= bound, f"{name}: relative error {error:.4g}, declared at most {bound:.4g}"


@laws("odd shapes keep their shape, and zeros stay zeros", _of_artifacts)
def odd_shapes(brought: Brought, bench: Bench) -> None:
    """Sizes that no group or block divides, and a matrix of zeros."""
    base = bench.model_of(*ODD)
    before = weights.read(base)
    before[ZEROS] = weights.constant(before[ZEROS].shape, 0.0)
    weights.write(base / "model.safetensors", before)
    after = _restored(*_quantized(brought, bench, base))
    assert _shapes(after) == _shapes(before)
    assert all(value == value for tensor in after.values() for value in tensor.values), "not a number appeared"
    assert weights.norm(after[ZEROS].values) == 0.0, "zeros became something else"


@laws("the base is untouched", _of_artifacts)
def base_untouched(brought: Brought, bench: Bench) -> None:
    """Not one byte of the artifact that is quantized changes, and the result stands elsewhere."""
    base = bench.model()
    before = fingerprint(base)
    quantized = _quantized(brought, bench, base)[1]
    assert fingerprint(base) == before
    assert base not in [quantized.path, *quantized.path.parents]


@laws("the same weights give the same files", _of_artifacts)
def deterministic(brought: Brought, bench: Bench) -> None:
    """Two runs agree byte for byte."""
    first, second = (_quantized(brought, bench, bench.model(), name)[1] for name in "ab")
    assert fingerprint(first.path, ".safetensors") == fingerprint(second.path, ".safetensors")


def _quantized(brought: Brought, bench: Bench, base: Path, name: str = "run") -> tuple[Any, Artifact]:
    quantizer, run = brought.sample().build(), bench.trained(base, name)
    return quantizer, quantizer.quantize(run, Artifact(base), run.output / "quantized")


def _restored(quantizer: Any, quantized: Artifact) -> dict[str, weights.Tensor]:
    return {name: weights.from_array(array) for name, array in quantizer.restore(quantized).items()}


def _shapes(tensors: Mapping[str, weights.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tensor.shape for name, tensor in tensors.items()}
